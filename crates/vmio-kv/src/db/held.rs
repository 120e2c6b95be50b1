//! What is held of a store: by whom, and nothing in a forked child.

use vmio::OfProcess;

use crate::db::holders::{Hold, Holder, Holders};
use crate::error::{Error, Result};

/// What somebody outside holds of a store. All that users hold is made of these, so that nothing of theirs gets at the store past
/// [`Held::get`], and nothing is dropped in a forked child: there the threads are not that end a store, and locks may be held for good by
/// those of the parent. As long as one is there its store cannot be opened again, and whoever tries is told what it is.
pub(crate) struct Held<T>(OfProcess<Counted<T>>);

struct Counted<T> {
    value: T,
    // Behind the value: whoever finds nothing held finds the store let go.
    hold: Hold,
}

impl<T> Held<T> {
    /// Something of a store that the calling process has opened.
    pub(crate) fn new(value: T, holders: Holders) -> std::io::Result<Self> {
        OfProcess::new(Counted { value, hold: holders.begin() }).map(Held)
    }

    /// What it is; [`Error::Forked`] in a forked child.
    #[inline]
    pub(crate) fn get(&self) -> Result<&T> {
        self.0.get().map(|counted| &counted.value).ok_or(Error::Forked)
    }

    /// The same, to change it.
    pub(crate) fn get_mut(&mut self) -> Result<&mut T> {
        self.0.get_mut().map(|counted| &mut counted.value).ok_or(Error::Forked)
    }

    /// Something else of the same store, for somebody else. In a forked child nothing is made, and whoever asks for it is told so.
    pub(crate) fn map<U>(&self, holder: Holder, make: impl FnOnce(&T) -> U) -> Held<U> {
        Held(self.0.map(|Counted { value, hold }| Counted { value: make(value), hold: hold.beside(holder) }))
    }
}

impl<T: Clone> Clone for Held<T> {
    fn clone(&self) -> Self {
        Held(self.0.map(|Counted { value, hold }| Counted { value: value.clone(), hold: hold.clone() }))
    }
}
