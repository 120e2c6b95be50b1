//! Who holds a store in this process, for those who want to open it again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use vmio::backing::Identity;

/// Stores that are held. Without a lock: a child may be forked at any time.
static HELD: OnceLock<ArcSwap<Vec<Weak<Counts>>>> = OnceLock::new();

/// What holds a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Db,
    Keyspace,
    Segment,
    Snapshot,
    Scan,
    Reader,
    Batch,
    /// The store holds itself, by its threads.
    Store,
}

const NAMES: [(Holder, &str); 7] = [
    (Holder::Db, "an open `Db`"),
    (Holder::Keyspace, "a keyspace's handle"),
    (Holder::Segment, "a segment's handle"),
    (Holder::Snapshot, "a snapshot"),
    (Holder::Scan, "a scan"),
    (Holder::Reader, "a value's reader"),
    (Holder::Batch, "a batch"),
];

/// How many there are of each who hold a store.
struct Counts {
    identity: Option<Identity>,
    of: [AtomicUsize; NAMES.len() + 1],
}

/// All who hold a store.
pub(crate) struct Holders(Arc<Counts>);

/// One of them, as long as it is there.
pub(crate) struct Hold {
    counts: Arc<Counts>,
    holder: Holder,
}

impl Holders {
    /// Nobody yet, of a store in that file or device.
    pub(crate) fn of(identity: Option<Identity>) -> Self {
        let counts = Arc::new(Counts { identity, of: Default::default() });
        HELD.get_or_init(ArcSwap::default).rcu(|held| {
            let others = held.iter().filter(|other| other.strong_count() > 0).cloned();
            others.chain([Arc::downgrade(&counts)]).collect::<Vec<_>>()
        });
        Holders(counts)
    }

    pub(super) fn begin(self) -> Hold {
        Hold::new(self.0, Holder::Store)
    }

    /// In words, those who hold the store in that file or device.
    pub(crate) fn in_words(identity: Identity) -> Option<String> {
        let held = HELD.get()?.load_full();
        let is_held = |holder: Holder| {
            let stores = held.iter().filter_map(Weak::upgrade).filter(|counts| counts.identity == Some(identity));
            stores.into_iter().any(|counts| counts.of[holder as usize].load(Ordering::Relaxed) > 0)
        };
        let names: Vec<&str> = NAMES.iter().filter(|(holder, _)| is_held(*holder)).map(|(_, name)| *name).collect();
        match names.split_last()? {
            (last, []) => Some((*last).to_owned()),
            (last, others) => Some(format!("{} and {last}", others.join(", "))),
        }
    }
}

impl Hold {
    fn new(counts: Arc<Counts>, holder: Holder) -> Self {
        counts.of[holder as usize].fetch_add(1, Ordering::Relaxed);
        Hold { counts, holder }
    }

    /// Somebody else who holds the same store.
    pub(super) fn beside(&self, holder: Holder) -> Hold {
        Hold::new(Arc::clone(&self.counts), holder)
    }
}

impl Clone for Hold {
    fn clone(&self) -> Self {
        self.beside(self.holder)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.counts.of[self.holder as usize].fetch_sub(1, Ordering::Relaxed);
    }
}
