//! What handles have of a store: nothing in a forked child.

use vmio::OfProcess;

use crate::error::{Error, Result};

/// What somebody outside holds of a store. All that users hold is made of these, so that nothing of theirs gets at the store past
/// [`Held::get`], and nothing is dropped in a forked child: there the threads are not that end a store, and locks may be held for good by
/// those of the parent.
pub(crate) struct Held<T>(OfProcess<T>);

impl<T> Held<T> {
    /// Something of a store that the calling process has opened.
    pub(crate) fn new(value: T) -> std::io::Result<Self> {
        OfProcess::new(value).map(Held)
    }

    /// What it is; [`Error::Forked`] in a forked child.
    #[inline]
    pub(crate) fn get(&self) -> Result<&T> {
        self.0.get().ok_or(Error::Forked)
    }

    /// The same, to change it.
    pub(crate) fn get_mut(&mut self) -> Result<&mut T> {
        self.0.get_mut().ok_or(Error::Forked)
    }

    /// Something else of the same store. In a forked child nothing is made, and whoever asks for it is told so.
    pub(crate) fn map<U>(&self, make: impl FnOnce(&T) -> U) -> Held<U> {
        Held(self.0.map(make))
    }
}

impl<T: Clone> Clone for Held<T> {
    fn clone(&self) -> Self {
        Held(self.0.clone())
    }
}
