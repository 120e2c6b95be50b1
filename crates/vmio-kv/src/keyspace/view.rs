//! A view of a keyspace at one moment, whatever is written later.

use std::sync::{Arc, OnceLock};

use crate::keyspace::gaps::{Ahead, Gaps};
use crate::keyspace::memtable::{Memtable, Staying};
use crate::keyspace::{Keyspace, Version};
use crate::tree::Direction;

/// A keyspace at one moment: a version, and the records of its memtable that were there by then.
pub(crate) struct View {
    pub(crate) version: Arc<Version>,
    /// Records from this number on came later.
    pub(crate) before: u64,
    /// Gaps of this view, in which later views may show keys.
    gaps: OnceLock<Gaps>,
}

impl View {
    fn new(version: Arc<Version>, before: u64) -> View {
        View { version, before, gaps: OnceLock::new() }
    }

    /// The known gaps from a place on. `None` is the place behind all keys.
    pub(super) fn ahead(&self, place: Option<&[u8]>, direction: Direction) -> Ahead {
        let of_keyspace = self.version.memtable.gaps().ahead(place, direction, self.before);
        let own = self.gaps.get().map_or(Ahead::Nothing, |gaps| gaps.ahead(place, direction, self.before));
        of_keyspace.or(own, direction)
    }

    /// Adds a gap between two places.
    pub(super) fn learn(&self, start: Vec<u8>, end: Vec<u8>) {
        let known_since = self.version.memtable.learn(&start, &end, self.before);
        if known_since.is_none_or(|since| since > self.before) {
            self.gaps.get_or_init(|| self.version.memtable.no_gaps()).learn(start, end, self.before);
        }
    }

    /// A view of the present.
    ///
    /// If the memtable becomes immutable between the two steps, that is the view's moment: it was after the call began.
    pub(crate) fn begin(keyspace: &Keyspace) -> View {
        let version = keyspace.version();
        let before = version.memtable.stay().begin_view();
        View::new(version, before)
    }

    /// Views of several keyspaces, in the order of their numbers, at the same moment: each batch is seen whole or not at all.
    pub(crate) fn begin_all<'keyspace>(keyspaces: impl Iterator<Item = &'keyspace Keyspace> + Clone) -> Vec<View> {
        loop {
            let versions: Vec<Arc<Version>> = keyspaces.clone().map(Keyspace::version).collect();
            // The writer of a batch locks all its memtables at once, too.
            let memtables: Vec<Staying<'_>> = versions.iter().map(|version| version.memtable.stay()).collect();
            let is_current = |(version, keyspace): (&Arc<Version>, &Keyspace)| {
                Arc::ptr_eq(&version.memtable, &keyspace.version().memtable)
            };
            if !versions.iter().zip(keyspaces.clone()).all(is_current) {
                // A memtable became immutable before it was locked: later writes may be seen in other keyspaces.
                continue;
            }
            let bounds: Vec<u64> = memtables.iter().map(Staying::begin_view).collect();
            drop(memtables);
            return versions.into_iter().zip(bounds).map(|(version, before)| View::new(version, before)).collect();
        }
    }
}

impl View {
    /// Whether nothing was written since. The caller has the keyspace's turn, so that this stays true.
    pub(crate) fn is_newest(&self, keyspace: &Keyspace) -> bool {
        Arc::ptr_eq(&self.version, &keyspace.version()) && self.version.memtable.stay().is_before(self.before)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let memtable: &Memtable = &self.version.memtable;
        memtable.release(self.before);
    }
}
