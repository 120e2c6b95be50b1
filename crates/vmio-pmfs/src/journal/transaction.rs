//! A transaction: changes of a few words that a crash leaves all done or all undone.

use parking_lot::MutexGuard;

use super::Ring;
use super::recovery::NUMBER_MAX;
use crate::error::{Damage, Error, Result};
use crate::format::journal_entry::{OLD_BYTES, Said};
use crate::medium::Medium;

const WORD: usize = 8;
/// The bytes that are copied at once.
const COPY_BYTES: usize = 64 << 10;

/// Changes that become durable together. Dropped, it changes nothing.
pub(crate) struct Transaction<'fs> {
    medium: &'fs dyn Medium,
    ring: MutexGuard<'fs, Ring>,
    number: u64,
    changes: Vec<Change>,
    /// Bytes of the area's place for saved data that are in use.
    saved: u64,
    overwrites: Vec<Overwrite>,
}

/// New bytes of whole words.
struct Change {
    at: u64,
    new: Vec<u8>,
}

/// New bytes of a range whose old ones are saved.
struct Overwrite {
    at: u64,
    saved_at: u64,
    new: Vec<u8>,
}

impl<'fs> Transaction<'fs> {
    pub(super) fn new(medium: &'fs dyn Medium, ring: MutexGuard<'fs, Ring>, number: u64) -> Transaction<'fs> {
        Transaction { medium, ring, number, changes: Vec::new(), saved: 0, overwrites: Vec::new() }
    }

    /// Writes bytes that nothing refers to before this transaction has been committed.
    pub(crate) fn fresh(&self, at: u64, bytes: &[u8]) {
        self.medium.write(at, bytes);
    }

    /// Changes whole words. The journal gets those that differ from what they were.
    pub(crate) fn set(&mut self, at: u64, new: &[u8]) {
        debug_assert!(at.is_multiple_of(WORD as u64) && new.len().is_multiple_of(WORD), "{} bytes at {at}", new.len());
        self.changes.push(Change { at, new: new.to_vec() });
    }

    /// Overwrites data in place, after a copy of what it was. All of a transaction's are as long as a write at the most.
    pub(crate) fn overwrite(&mut self, at: u64, new: &[u8]) {
        assert!(self.saved + new.len() as u64 <= self.ring.save_bytes, "a transaction overwrites more than a write");
        let saved_at = self.ring.saves_at + self.saved;
        self.saved += new.len() as u64;
        self.overwrites.push(Overwrite { at, saved_at, new: new.to_vec() });
    }

    /// Makes all changes, durably. If it fails, it has made none.
    pub(crate) fn commit(mut self) -> Result<()> {
        if self.number > NUMBER_MAX {
            let damage = Damage::Field { field: "transaction", found: self.number };
            return Err(Error::Damaged { structure: "a journal", at: self.ring.at, damage });
        }
        let differences = self.differences();
        let entries = differences.iter().map(|one| one.1.len().div_ceil(OLD_BYTES) as u64).sum::<u64>();
        let entries = entries + self.overwrites.len() as u64 + 2;
        if entries > self.ring.most() {
            return Err(Error::ChangeTooLarge { entries, most: self.ring.most() });
        }
        // No entry may say that saved data is there before it is.
        for overwrite in &self.overwrites {
            copy(self.medium, overwrite.at, overwrite.saved_at, overwrite.new.len());
        }
        if !self.overwrites.is_empty() {
            self.medium.fence();
        }
        self.ring.append(self.medium, self.number, Said::Start);
        for (at, new) in &differences {
            for (index, part) in new.chunks(OLD_BYTES).enumerate() {
                let (at, mut old) = (at + (index * OLD_BYTES) as u64, [0; OLD_BYTES]);
                self.medium.read(at, &mut old[..part.len()]);
                self.ring.append(self.medium, self.number, Said::Old { at, bytes: part.len() as u8, old });
            }
        }
        for Overwrite { at, saved_at, new } in &self.overwrites {
            let said = Said::Saved { at: *at, from: *saved_at, bytes: new.len() as u64 };
            self.ring.append(self.medium, self.number, said);
        }
        self.medium.fence();
        for (at, new) in &differences {
            self.medium.write(*at, new);
        }
        for Overwrite { at, new, .. } in &self.overwrites {
            self.medium.write(*at, new);
        }
        self.medium.fence();
        self.ring.append(self.medium, self.number, Said::Commit);
        self.medium.fence();
        Ok(())
    }

    /// The runs of words that differ from what is on the medium. Words between two of them are in if all fit an entry.
    fn differences(&self) -> Vec<(u64, Vec<u8>)> {
        let mut differences: Vec<(u64, Vec<u8>)> = Vec::new();
        for Change { at, new } in &self.changes {
            let mut old = vec![0; new.len()];
            self.medium.read(*at, &mut old);
            let mut run: Option<std::ops::Range<usize>> = None;
            let words = (0..new.len()).step_by(WORD).map(|start| start..start + WORD);
            for word in words.filter(|word| old[word.clone()] != new[word.clone()]) {
                run = match run {
                    Some(run) if run.end == word.start || word.end - run.start <= OLD_BYTES => {
                        Some(run.start..word.end)
                    }
                    Some(run) => {
                        differences.push((at + run.start as u64, new[run].to_vec()));
                        Some(word)
                    }
                    None => Some(word),
                };
            }
            differences.extend(run.map(|run| (at + run.start as u64, new[run].to_vec())));
        }
        differences
    }
}

/// Copies bytes from one place of a medium to another.
pub(super) fn copy(medium: &dyn Medium, from: u64, to: u64, bytes: usize) {
    let mut buffer = vec![0; bytes.min(COPY_BYTES)];
    for done in (0..bytes).step_by(COPY_BYTES) {
        let part = &mut buffer[..COPY_BYTES.min(bytes - done)];
        medium.read(from + done as u64, part);
        medium.write(to + done as u64, part);
    }
}
