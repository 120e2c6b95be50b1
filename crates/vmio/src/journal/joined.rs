//! A file that has joined a journal.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, PoisonError, RwLock};

use crate::backing::Backing;
use crate::journal::index::PageIndex;
use crate::journal::participant::Participant;
use crate::journal::version::Version;
use crate::sys::signal::SignalsBlocked;

/// A file that has joined.
pub(crate) struct Joined {
    pub(crate) file: u32,
    pub(crate) data: Box<dyn Backing>,
    pub(crate) index: PageIndex,
    /// Its length as the mapping sees it. The file itself grows when a checkpoint writes committed pages into it.
    pub(crate) len: AtomicU64,
    /// The head of the log when the file joined.
    pub(crate) since: u64,
    /// False once its backing has been dropped: the file takes part in no further commit.
    pub(crate) is_open: AtomicBool,
    /// The mapping that keeps pages of the file in memory. A commit must ask it for them.
    participant: RwLock<Option<Arc<dyn Participant>>>,
}

impl Joined {
    pub(crate) fn new(file: u32, data: Box<dyn Backing>, index: PageIndex, since: u64) -> Self {
        let len = AtomicU64::new(data.len());
        Joined { file, data, index, len, since, is_open: AtomicBool::new(true), participant: RwLock::default() }
    }

    /// Sets or clears the participant that commits ask for pages.
    pub(crate) fn set_participant(&self, participant: Option<Arc<dyn Participant>>) {
        let _signals = SignalsBlocked::new();
        let before = {
            let mut present = self.participant.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *present, participant)
        };
        drop(before);
    }

    /// Copies a version of a page from memory, if it is there.
    pub(crate) fn copy_from_memory(&self, page: u64, version: Version, target: &mut [u8]) -> bool {
        // A thread that closes the file waits until the copy is made.
        let participant = self.participant.read().unwrap_or_else(PoisonError::into_inner);
        let is_newest = || self.index.version(page) == Some(version);
        participant.as_ref().is_some_and(|memory| is_newest() && memory.copy_clean(page, target, &is_newest))
    }

    /// The participant that commits ask for pages. Callers block signals.
    pub(crate) fn participant(&self) -> Option<Arc<dyn Participant>> {
        self.participant.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
