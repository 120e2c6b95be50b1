//! Recovery: what transactions without an end have changed becomes what it was.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use super::transaction::copy;
use super::{Journals, Ring};
use crate::error::{Damage, Error, Result};
use crate::format::geometry::Geometry;
use crate::format::journal_entry::{ENTRY_BYTES, JournalEntry, Said};
use crate::medium::Medium;

/// The greatest number of a transaction. No file system lives for as many; damage may say so.
pub(super) const NUMBER_MAX: u64 = 1 << 62;

/// The newest transaction of a journal.
struct Newest {
    number: u64,
    /// Its entries behind the first.
    entries: Vec<JournalEntry>,
    /// The place behind them, and the lap there.
    next: u64,
    lap: u16,
}

impl Newest {
    fn is_over(&self) -> bool {
        self.entries.last().is_some_and(|entry| entry.said == Said::Commit)
    }
}

impl Journals {
    /// Rolls back all transactions that are not over, the newest first. Says how many.
    pub(crate) fn recover(medium: &Arc<dyn Medium>, geometry: &Geometry) -> Result<(Journals, usize)> {
        let mut rings: Vec<Ring> = (0..geometry.areas).map(|area| Ring::of(geometry, area)).collect();
        let mut last = 0;
        let mut open = Vec::new();
        for (index, ring) in rings.iter_mut().enumerate() {
            let entries = entries(&**medium, ring);
            // A crash may leave entries of a transaction without its START: no other transaction may have their number.
            let highest = entries.iter().flatten().map(|entry| entry.transaction).max().unwrap_or(0);
            if highest > NUMBER_MAX {
                let damage = Damage::Field { field: "transaction", found: highest };
                return Err(Error::Damaged { structure: "a journal", at: ring.at, damage });
            }
            last = last.max(highest);
            if let Some(newest) = newest(&entries, ring) {
                (ring.next, ring.lap) = (newest.next, newest.lap);
                if !newest.is_over() {
                    open.push((index, newest));
                }
            }
        }
        open.sort_by_key(|(_, newest)| std::cmp::Reverse(newest.number));
        for (index, newest) in &open {
            roll_back(&**medium, geometry, &rings[*index], newest)?;
        }
        medium.fence();
        // Only when all is as it was: a second recovery would undo what came after.
        for (index, newest) in &open {
            rings[*index].append(&**medium, newest.number, Said::Commit);
        }
        medium.fence();
        let rings = rings.into_iter().map(Mutex::new).collect();
        Ok((Journals { medium: Arc::clone(medium), rings, next: AtomicU64::new(last + 1) }, open.len()))
    }
}

/// A journal as it is on the medium.
pub(crate) struct Seen {
    /// The first byte.
    pub(crate) at: u64,
    /// Its places, with nothing where there is no whole entry.
    pub(crate) entries: Vec<Option<JournalEntry>>,
    /// The number of the newest transaction, and whether it is over.
    pub(crate) newest: Option<(u64, bool)>,
}

/// Reads an area's journal.
pub(crate) fn read_journal(medium: &dyn Medium, geometry: &Geometry, area: u32) -> Seen {
    let ring = Ring::of(geometry, area);
    let entries = entries(medium, &ring);
    let newest = newest(&entries, &ring).map(|newest| (newest.number, newest.is_over()));
    Seen { at: ring.at, entries, newest }
}

/// The places of a ring, with nothing where there is no whole entry.
fn entries(medium: &dyn Medium, ring: &Ring) -> Vec<Option<JournalEntry>> {
    let mut bytes = vec![0; ring.entries as usize * ENTRY_BYTES];
    medium.read(ring.at, &mut bytes);
    bytes.as_chunks::<ENTRY_BYTES>().0.iter().map(JournalEntry::from_bytes).collect()
}

/// The newest transaction whose beginning is in the ring.
fn newest(entries: &[Option<JournalEntry>], ring: &Ring) -> Option<Newest> {
    let starts = entries.iter().enumerate().filter_map(|(place, entry)| Some((place, (*entry)?)));
    let (place, start) =
        starts.filter(|(_, entry)| entry.said == Said::Start).max_by_key(|(_, entry)| entry.transaction)?;
    let mut newest = Newest { number: start.transaction, entries: Vec::new(), next: place as u64, lap: start.lap };
    for _ in 0..=ring.most() {
        newest.next += 1;
        if newest.next == ring.entries {
            (newest.next, newest.lap) = (0, newest.lap.wrapping_add(1));
        }
        match entries[newest.next as usize] {
            Some(entry)
                if entry.transaction == newest.number && entry.lap == newest.lap && entry.said != Said::Start =>
            {
                newest.entries.push(entry);
                if entry.said == Said::Commit {
                    newest.next += 1;
                    if newest.next == ring.entries {
                        (newest.next, newest.lap) = (0, newest.lap.wrapping_add(1));
                    }
                    break;
                }
            }
            _ => break,
        }
    }
    Some(newest)
}

fn roll_back(medium: &dyn Medium, geometry: &Geometry, ring: &Ring, newest: &Newest) -> Result<()> {
    let within = |at: u64, bytes: u64| at.checked_add(bytes).is_some_and(|end| end <= geometry.bytes());
    let damaged = |found| {
        let damage = Damage::Field { field: "place of old bytes", found };
        Error::Damaged { structure: "a journal", at: ring.at, damage }
    };
    for entry in newest.entries.iter().rev() {
        match entry.said {
            Said::Old { at, bytes, old } if within(at, bytes.into()) => medium.write(at, &old[..usize::from(bytes)]),
            Said::Saved { at, from, bytes } if within(at, bytes) && within(from, bytes) => {
                copy(medium, from, at, bytes as usize);
            }
            Said::Old { at, .. } | Said::Saved { at, .. } => return Err(damaged(at)),
            Said::Start | Said::Commit => (),
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::medium::simulated::Simulated;

    const GEOMETRY: Geometry = Geometry { blocks: 1024, areas: 1, inodes: 64, journal_blocks: 1, save_blocks: 1 };
    const AT: u64 = 3 << 20;

    fn word(medium: &dyn Medium, at: u64) -> u64 {
        let mut word = [0; 8];
        medium.read(at, &mut word);
        u64::from_le_bytes(word)
    }

    /// Many transactions around the ring; after each prefix of fences the words are those before or after the last.
    #[test]
    fn transactions_are_whole_after_any_number_of_laps() {
        let medium = Arc::new(Simulated::new(GEOMETRY.bytes()));
        let shared: Arc<dyn Medium> = medium.clone();
        let (journals, rolled_back) = Journals::recover(&shared, &GEOMETRY).unwrap();
        assert_eq!(rolled_back, 0);
        for round in 1..200_u64 {
            let before = medium.copy();
            medium.record();
            let mut transaction = journals.begin(0);
            for place in 0..1 + round % 7 {
                transaction.set(AT + place * 4096, &round.to_le_bytes());
            }
            transaction.overwrite(AT + 65536, &round.to_le_bytes());
            transaction.commit().unwrap();
            let epochs = medium.recorded();
            for cut in 0..epochs.len() {
                let crashed = before.copy();
                for store in epochs[..cut].iter().flatten() {
                    crashed.write(store.at, &store.bytes);
                }
                let crashed: Arc<dyn Medium> = Arc::new(crashed);
                let (_, rolled_back) = Journals::recover(&crashed, &GEOMETRY).unwrap();
                let is_after = word(&*crashed, AT) == round;
                assert_eq!(word(&*crashed, AT + 65536) == round, is_after, "round {round}, cut {cut}");
                for place in 0..1 + round % 7 {
                    assert_eq!(word(&*crashed, AT + place * 4096) == round, is_after, "round {round}, cut {cut}");
                }
                // Once more: what has been rolled back stays so.
                assert!(rolled_back <= 1);
                assert_eq!(Journals::recover(&crashed, &GEOMETRY).unwrap().1, 0);
            }
        }
    }

    /// A crash keeps all of a transaction's entries but START. A shorter one takes their place in the ring and is cut short, too.
    #[test]
    fn entries_without_a_start_are_no_part_of_a_later_transaction() {
        let medium = Arc::new(Simulated::new(GEOMETRY.bytes()));
        let (one, other) = (AT + 65536, AT + 131_072);
        medium.write(one, &[1; 8]);
        medium.write(other, &[2; 8]);
        let shared: Arc<dyn Medium> = medium.clone();
        let (journals, _) = Journals::recover(&shared, &GEOMETRY).unwrap();
        let mut transaction = journals.begin(0);
        transaction.set(AT, &[3; 8]);
        transaction.commit().unwrap();
        let before = medium.copy();
        medium.record();
        let mut longer = journals.begin(0);
        longer.set(AT, &[4; 8]);
        longer.overwrite(one, &[4; 8]);
        longer.commit().unwrap();
        let epochs = medium.recorded();
        // Saved data, then entries, of which START is the first.
        let start = epochs[1][0].at;
        let is_start = |at: u64| (start..start + ENTRY_BYTES as u64).contains(&at);
        let crashed = Arc::new(before);
        for store in epochs[..2].iter().flatten().filter(|store| !is_start(store.at)) {
            crashed.write(store.at, &store.bytes);
        }
        let shared: Arc<dyn Medium> = crashed.clone();
        let (journals, rolled_back) = Journals::recover(&shared, &GEOMETRY).unwrap();
        assert_eq!(rolled_back, 0);
        let again = crashed.copy();
        crashed.record();
        let mut shorter = journals.begin(0);
        shorter.overwrite(other, &[5; 8]);
        shorter.commit().unwrap();
        for store in crashed.recorded()[..3].iter().flatten() {
            again.write(store.at, &store.bytes);
        }
        let again: Arc<dyn Medium> = Arc::new(again);
        assert_eq!(word(&*again, other), u64::from_le_bytes([5; 8]));
        assert_eq!(Journals::recover(&again, &GEOMETRY).unwrap().1, 1);
        let words = [AT, one, other].map(|at| word(&*again, at).to_le_bytes()[0]);
        assert_eq!(words, [3, 1, 2]);
    }

    /// A number that damage has made passes for the last one there can be. What comes after it would be refused at the next mount.
    #[test]
    fn transactions_behind_the_greatest_number_are_refused() {
        let medium: Arc<dyn Medium> = Arc::new(Simulated::new(GEOMETRY.bytes()));
        let mut ring = Ring::of(&GEOMETRY, 0);
        ring.append(&*medium, NUMBER_MAX - 1, Said::Start);
        ring.append(&*medium, NUMBER_MAX - 1, Said::Commit);
        let (journals, _) = Journals::recover(&medium, &GEOMETRY).unwrap();
        let commit = |value: u8| {
            let mut transaction = journals.begin(0);
            transaction.set(AT, &[value; 8]);
            transaction.commit()
        };
        commit(1).unwrap();
        assert!(matches!(commit(2), Err(Error::Damaged { structure: "a journal", .. })));
        assert_eq!(word(&*medium, AT), u64::from_le_bytes([1; 8]));
        assert!(Journals::recover(&medium, &GEOMETRY).is_ok());
    }

    #[test]
    fn a_change_larger_than_the_journal_is_refused() {
        let medium: Arc<dyn Medium> = Arc::new(Simulated::new(GEOMETRY.bytes()));
        let (journals, _) = Journals::recover(&medium, &GEOMETRY).unwrap();
        let mut transaction = journals.begin(0);
        for place in 0..64 {
            transaction.set(AT + place * 4096, &[1; 8]);
        }
        assert!(matches!(transaction.commit(), Err(Error::ChangeTooLarge { entries: 66, most: 31 })));
        assert_eq!(word(&*medium, AT), 0);
    }
}
