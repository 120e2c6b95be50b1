//! A scan within a transaction.

use std::cmp::Ordering;
use std::iter::FusedIterator;
use std::sync::Arc;

use crate::db::open_handle::OpenHandle;
use crate::db::open_handles::HandleKind;
use crate::db::open_keyspace::OpenKeyspace;
use crate::db::scan::{Progress, Scan};
use crate::db::transaction::state::State;
use crate::db::transaction::two_ends::TwoEnds;
use crate::db::transaction::writes::SomeKeys;
use crate::error::Result;
use crate::key_range::KeyRange;
use crate::tree::Direction;

/// An iterator over the keys and values of a range in order, as a transaction sees them; see
/// [`Transaction::scan`](crate::Transaction::scan).
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let db = vmio_kv::Db::create(folder.path().join("store"), vmio_kv::Options::new())?;
/// db.put(b"apple", b"red")?;
/// db.put(b"pear", b"green")?;
/// let mut transaction = db.transaction();
/// transaction.put(&db, b"plum", b"blue")?;
/// transaction.delete(&db, b"apple")?;
/// let found = transaction.scan(&db, ..)?.rev().collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(found[0].0, b"plum");
/// assert_eq!(found[1].0, b"pear");
/// assert_eq!(found.len(), 2);
/// # Ok(())
/// # }
/// ```
pub struct TransactionScan<'transaction> {
    transaction: &'transaction OpenHandle<State>,
    place: usize,
    /// Its number among the keyspace's scans.
    number: usize,
    shown: TwoEnds<Scan>,
    own: TwoEnds<SomeKeys<'transaction>>,
    is_over: bool,
}

/// Which of the next entries is nearer; the transaction's own one counts if both have the same key.
enum Nearer {
    Shown,
    Own,
    Both,
    Neither,
}

impl<'transaction> TransactionScan<'transaction> {
    pub(super) fn begin(
        transaction: &'transaction OpenHandle<State>,
        open: &OpenKeyspace,
        range: KeyRange,
    ) -> Result<Self> {
        let state = transaction.get()?;
        let place = state.place(open)?;
        let own = TwoEnds::new(state.writes.range(place, &range));
        let number = state.reads.lock().begin_scan(place, range.clone());
        let progress = |state: &State| Progress::new(open.clone(), Arc::clone(&state.views[place].1), range);
        let shown = TwoEnds::new(Scan::new(transaction.map(HandleKind::Scan, progress)));
        Ok(TransactionScan { transaction, place, number, shown, own, is_over: false })
    }

    fn step(&mut self, direction: Direction) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        if self.is_over {
            return None;
        }
        let next = self.take(direction);
        self.is_over = !matches!(next, Ok(Some(_)));
        next.transpose()
    }

    fn take(&mut self, direction: Direction) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        // In a forked child another thread may have held the lock for good.
        let state = self.transaction.get()?;
        loop {
            let nearer = match (self.shown.peek(direction), self.own.peek(direction)) {
                (None, None) => Nearer::Neither,
                (Some(_), None) | (Some(Err(_)), _) => Nearer::Shown,
                (None, Some(_)) => Nearer::Own,
                (Some(Ok((shown, _))), Some((own, _))) => match (shown.as_slice().cmp(own), direction) {
                    (Ordering::Equal, _) => Nearer::Both,
                    (Ordering::Less, Direction::Up) | (Ordering::Greater, Direction::Down) => Nearer::Shown,
                    _ => Nearer::Own,
                },
            };
            let found = match nearer {
                Nearer::Neither => {
                    state.reads.lock().end_scan(self.place, self.number);
                    return Ok(None);
                }
                Nearer::Shown => self.shown.take(direction).transpose()?,
                Nearer::Own | Nearer::Both => {
                    if matches!(nearer, Nearer::Both) {
                        self.shown.take(direction).transpose()?;
                    }
                    let own = self.own.take(direction);
                    own.and_then(|(key, value)| Some((key.to_vec(), value.as_ref()?.to_vec())))
                }
            };
            if let Some((key, value)) = found {
                state.reads.lock().reach(self.place, self.number, direction, &key);
                return Ok(Some((key, value)));
            }
        }
    }
}

impl Iterator for TransactionScan<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Up)
    }
}

impl DoubleEndedIterator for TransactionScan<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Down)
    }
}

impl FusedIterator for TransactionScan<'_> {}
