//! A handle of an open store: counted, and unusable in a forked child.

use vmio::OfProcess;

use crate::db::open_handles::{HandleCount, HandleKind, OpenHandles};
use crate::error::{Error, Result};

/// A user's reference into an open store.
///
/// All public types are made of these, so that they reach the store through [`OpenHandle::get`] alone. A forked child gets nothing, and drops
/// nothing: it lacks the threads that end a store, and the parent's threads may hold locks for good there. As long as a handle exists its
/// store cannot be opened again, and the error names the handles.
pub(crate) struct OpenHandle<T>(OfProcess<Counted<T>>);

struct Counted<T> {
    value: T,
    // Behind the value: once no handle is counted, the value is gone as well.
    count: HandleCount,
}

impl<T> OpenHandle<T> {
    /// The first handle of a store that the calling process has opened.
    pub(crate) fn new(value: T, handles: OpenHandles) -> std::io::Result<Self> {
        OfProcess::new(Counted { value, count: handles.begin() }).map(OpenHandle)
    }

    /// The value; [`Error::Forked`] in a forked child.
    #[inline]
    pub(crate) fn get(&self) -> Result<&T> {
        self.0.get().map(|counted| &counted.value).ok_or(Error::Forked)
    }

    /// The value, to change it; [`Error::Forked`] in a forked child.
    pub(crate) fn get_mut(&mut self) -> Result<&mut T> {
        self.0.get_mut().map(|counted| &mut counted.value).ok_or(Error::Forked)
    }

    /// Another handle of the same store. In a forked child it is as unusable as this one, and `make` is not called.
    pub(crate) fn map<U>(&self, kind: HandleKind, make: impl FnOnce(&T) -> U) -> OpenHandle<U> {
        OpenHandle(self.0.map(|Counted { value, count }| Counted { value: make(value), count: count.another(kind) }))
    }
}

impl<T: Clone> Clone for OpenHandle<T> {
    fn clone(&self) -> Self {
        OpenHandle(self.0.map(|Counted { value, count }| Counted { value: value.clone(), count: count.clone() }))
    }
}
