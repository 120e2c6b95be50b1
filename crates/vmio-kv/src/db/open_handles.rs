//! The open handles of each store in this process, so that a second opening can say which ones prevent it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use vmio::backing::Identity;

/// All stores with open handles. Without a lock: a child may be forked at any time.
static OPEN: OnceLock<ArcSwap<Vec<Weak<Counts>>>> = OnceLock::new();

/// The kinds of values that keep a store open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleKind {
    Db,
    Keyspace,
    Segment,
    Snapshot,
    Scan,
    Reader,
    Batch,
    Transaction,
    /// The store's own, which its threads have.
    Store,
}

const NAMES: [(HandleKind, &str); 8] = [
    (HandleKind::Db, "an open `Db`"),
    (HandleKind::Keyspace, "a keyspace's handle"),
    (HandleKind::Segment, "a segment's handle"),
    (HandleKind::Snapshot, "a snapshot"),
    (HandleKind::Scan, "a scan"),
    (HandleKind::Reader, "a value's reader"),
    (HandleKind::Batch, "a batch"),
    (HandleKind::Transaction, "a transaction"),
];

/// How many handles of each kind a store has.
struct Counts {
    identity: Option<Identity>,
    of: [AtomicUsize; NAMES.len() + 1],
}

/// All open handles of a store.
pub(crate) struct OpenHandles(Arc<Counts>);

/// Counts one open handle for as long as it exists.
pub(crate) struct HandleCount {
    counts: Arc<Counts>,
    kind: HandleKind,
}

impl OpenHandles {
    /// None yet, of a store in that file or device.
    pub(crate) fn of(identity: Option<Identity>) -> Self {
        let counts = Arc::new(Counts { identity, of: Default::default() });
        OPEN.get_or_init(ArcSwap::default).rcu(|open| {
            let others = open.iter().filter(|other| other.strong_count() > 0).cloned();
            others.chain([Arc::downgrade(&counts)]).collect::<Vec<_>>()
        });
        OpenHandles(counts)
    }

    pub(super) fn begin(self) -> HandleCount {
        HandleCount::new(self.0, HandleKind::Store)
    }

    /// In words, which kinds of handles keep the store in that file or device open.
    pub(crate) fn in_words(identity: Identity) -> Option<String> {
        let open = OPEN.get()?.load_full();
        let is_open = |kind: HandleKind| {
            let stores = open.iter().filter_map(Weak::upgrade).filter(|counts| counts.identity == Some(identity));
            stores.into_iter().any(|counts| counts.of[kind as usize].load(Ordering::Relaxed) > 0)
        };
        let names: Vec<&str> = NAMES.iter().filter(|(kind, _)| is_open(*kind)).map(|(_, name)| *name).collect();
        match names.split_last()? {
            (last, []) => Some((*last).to_owned()),
            (last, others) => Some(format!("{} and {last}", others.join(", "))),
        }
    }
}

impl HandleCount {
    fn new(counts: Arc<Counts>, kind: HandleKind) -> Self {
        counts.of[kind as usize].fetch_add(1, Ordering::Relaxed);
        HandleCount { counts, kind }
    }

    /// Counts another handle of the same store.
    pub(super) fn another(&self, kind: HandleKind) -> HandleCount {
        HandleCount::new(Arc::clone(&self.counts), kind)
    }
}

impl Clone for HandleCount {
    fn clone(&self) -> Self {
        self.another(self.kind)
    }
}

impl Drop for HandleCount {
    fn drop(&mut self) {
        let before = self.counts.of[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "{:?} was counted out more often than in", self.kind);
    }
}
