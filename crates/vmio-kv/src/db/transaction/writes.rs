//! The writes of a transaction, before its commit.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::db::open_keyspace::OpenKeyspace;
use crate::db::open_segment::OpenSegment;
use crate::db::operation::Operation;
use crate::error::{Error, Result};
use crate::format::record::RecordKind;
use crate::key_range::KeyRange;

/// The keys to write, with their values; `None` deletes.
pub(super) type Keys = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

/// An iterator over some of them.
pub(super) type SomeKeys<'writes> = btree_map::Range<'writes, Box<[u8]>, Option<Box<[u8]>>>;

/// The writes of a transaction, by the places of keyspaces.
#[derive(Default)]
pub(super) struct Writes {
    of: BTreeMap<usize, OfKeyspace>,
    /// The savepoints, with the number of changes before each.
    savepoints: Vec<(u64, usize)>,
    /// The changes since the first savepoint.
    changes: Vec<Change>,
}

struct OfKeyspace {
    open: OpenKeyspace,
    keys: Keys,
}

/// A change of the writes, which a rollback undoes.
struct Change {
    place: usize,
    key: Box<[u8]>,
    before: Option<Option<Box<[u8]>>>,
}

/// A state of a transaction's writes; see [`Transaction::savepoint`](crate::Transaction::savepoint).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(u64);

impl Writes {
    /// The value that it writes to a key; `Some(None)` is a deletion.
    pub(super) fn get(&self, place: usize, key: &[u8]) -> Option<Option<&[u8]>> {
        self.of.get(&place)?.keys.get(key).map(Option::as_deref)
    }

    /// The writes within a range.
    pub(super) fn range(&self, place: usize, range: &KeyRange) -> SomeKeys<'_> {
        static NOTHING: Keys = BTreeMap::new();
        fn bound(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
            bound.as_ref().map(Vec::as_slice)
        }
        match (self.of.get(&place), range.is_empty()) {
            (Some(of), false) => of.keys.range::<[u8], _>((bound(&range.lower), bound(&range.upper))),
            _ => NOTHING.range::<[u8], _>(..),
        }
    }

    /// The segment that is written to, if there are any writes, and the name of a keyspace there.
    pub(super) fn home(&self) -> Option<(&Arc<OpenSegment>, &str)> {
        let of = self.of.values().find(|of| !of.keys.is_empty())?;
        Some((&of.open.home, &of.open.keyspace.name))
    }

    pub(super) fn set(&mut self, place: usize, open: &OpenKeyspace, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        if let Some((home, first)) = self.home()
            && !Arc::ptr_eq(home, &open.home)
        {
            let (first, second) = (first.to_owned(), open.keyspace.name.clone());
            return Err(Error::BatchAcrossSegments { first, second });
        }
        let of = self.of.entry(place).or_insert_with(|| OfKeyspace { open: open.clone(), keys: Keys::new() });
        let before = of.keys.insert(key.into(), value.map(Into::into));
        if !self.savepoints.is_empty() {
            self.changes.push(Change { place, key: key.into(), before });
        }
        Ok(())
    }

    pub(super) fn savepoint(&mut self) -> Savepoint {
        // Of all transactions, so that none takes another one's for its own.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.savepoints.push((number, self.changes.len()));
        Savepoint(number)
    }

    pub(super) fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<()> {
        let found = self.savepoints.iter().position(|(number, _)| *number == savepoint.0);
        let place = found.ok_or(Error::NoSavepoint)?;
        self.savepoints.truncate(place + 1);
        let (_, changes) = self.savepoints[place];
        for Change { place, key, before } in self.changes.drain(changes..).rev() {
            let Some(of) = self.of.get_mut(&place) else { unreachable!("a changed keyspace has an entry") };
            match before {
                Some(before) => of.keys.insert(key, before),
                None => of.keys.remove(&key),
            };
        }
        Ok(())
    }

    /// Takes all writes.
    pub(super) fn take(&mut self) -> Vec<Operation> {
        let operation = |keyspace: &OpenKeyspace, key, value: Option<Box<[u8]>>| Operation {
            keyspace: Arc::clone(&keyspace.keyspace),
            kind: if value.is_some() { RecordKind::Put } else { RecordKind::Delete },
            key,
            value: value.unwrap_or_default(),
        };
        let of_keyspace = |OfKeyspace { open, keys }: OfKeyspace| {
            keys.into_iter().map(|(key, value)| operation(&open, key, value)).collect::<Vec<_>>()
        };
        std::mem::take(&mut self.of).into_values().flat_map(of_keyspace).collect()
    }
}
