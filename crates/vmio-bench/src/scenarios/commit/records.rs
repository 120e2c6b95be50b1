//! The records that every store holds, two in a page of 4 KiB, and what a change does to one.
//!
//! Each store keeps two records in a page of its own, so that a change dirties one such page everywhere: LMDB would put
//! longer values on pages beside its tree, and write two for one.

use std::ops::Range;

use anyhow::Context;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use vmio_measure::content::{PAGE_BYTES, WORD_BYTES, mix64, word_at};

/// The size of a record.
pub const RECORD_BYTES: usize = 2000;
/// Records in a page.
pub const RECORDS_PER_PAGE: u64 = 2;
/// What a record has of a page in a mapped file.
pub const SLOT_BYTES: u64 = PAGE_BYTES / RECORDS_PER_PAGE;
/// What a change overwrites of a record.
pub const CHANGED_BYTES: usize = 128;

const WORD: usize = WORD_BYTES as usize;

/// The bytes of a record.
pub type Record = [u8; RECORD_BYTES];

/// Puts together what a record holds after its change of that number; 0 is the record as it was made.
pub fn record_after(number: u64, version: u32, record: &mut Record) {
    let changed = changed_range(number);
    for (index, word) in record.chunks_exact_mut(WORD).enumerate() {
        let version = if changed.contains(&(index * WORD)) { version } else { 0 };
        word.copy_from_slice(&word_of(number, index * WORD, version).to_le_bytes());
    }
}

/// The part of a record that its changes overwrite.
fn changed_range(number: u64) -> Range<usize> {
    let choices = ((RECORD_BYTES - CHANGED_BYTES) / WORD) as u64;
    let start = (mix64(number) % choices) as usize * WORD;
    start..start + CHANGED_BYTES
}

fn word_of(number: u64, at: usize, version: u32) -> u64 {
    word_at(number * SLOT_BYTES + at as u64, u64::from(version))
}

/// One change of one record.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The record's number.
    pub record: u64,
    /// How many changes it has with this one.
    pub version: u32,
}

impl Change {
    /// Where in the record it begins.
    pub fn start(&self) -> usize {
        changed_range(self.record).start
    }

    /// What it writes there.
    pub fn bytes(&self) -> [u8; CHANGED_BYTES] {
        let mut bytes = [0; CHANGED_BYTES];
        for (at, word) in self.words() {
            bytes[at - self.start()..][..WORD].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The same as words, with the place of each in the record.
    pub fn words(&self) -> impl Iterator<Item = (usize, u64)> {
        let (record, version) = (self.record, self.version);
        changed_range(record).step_by(WORD).map(move |at| (at, word_of(record, at, version)))
    }
}

/// What one thread changes: the pages whose number is its own modulo the number of threads. It knows what they must hold.
pub struct Share {
    thread: u64,
    threads: u64,
    /// The versions of the records in its pages, in their order.
    versions: Vec<u32>,
    random: SmallRng,
}

impl Share {
    /// The share of one thread of `threads` in a store of `pages` pages, nothing of it changed yet.
    pub fn new(thread: u32, threads: u32, pages: u64) -> Self {
        let (thread, threads) = (u64::from(thread), u64::from(threads));
        let own = (pages.saturating_sub(thread)).div_ceil(threads);
        let versions = vec![0; (own * RECORDS_PER_PAGE) as usize];
        Self { thread, threads, versions, random: SmallRng::seed_from_u64(thread) }
    }

    fn record(&self, index: usize) -> u64 {
        let per_page = RECORDS_PER_PAGE as usize;
        self.page_number(index / per_page) * RECORDS_PER_PAGE + (index % per_page) as u64
    }

    /// Picks that many different pages at random, no more than there are, by their place in the share.
    pub fn draw_pages(&mut self, count: usize) -> Vec<usize> {
        let all = self.versions.len() / RECORDS_PER_PAGE as usize;
        rand::seq::index::sample(&mut self.random, all, count).into_vec()
    }

    /// The number that a page of the share has in the store.
    pub fn page_number(&self, page: usize) -> u64 {
        page as u64 * self.threads + self.thread
    }

    /// Changes one record of each of these pages.
    pub fn draw_changes(&mut self, pages: &[usize]) -> Vec<Change> {
        let mut changes = Vec::with_capacity(pages.len());
        for page in pages {
            let index = page * RECORDS_PER_PAGE as usize + self.random.random_range(0..RECORDS_PER_PAGE as usize);
            changes.push(Change { record: self.record(index), version: self.versions[index] + 1 });
        }
        changes
    }

    /// Notes what is committed.
    pub fn note(&mut self, changes: &[Change]) {
        for change in changes {
            let (page, within) = (change.record / RECORDS_PER_PAGE, change.record % RECORDS_PER_PAGE);
            self.versions[(page / self.threads * RECORDS_PER_PAGE + within) as usize] = change.version;
        }
    }

    /// Counts the records of the share that do not hold what they must; `read` gives what a record holds.
    pub fn count_wrong(&self, mut read: impl FnMut(u64, &mut Record) -> anyhow::Result<()>) -> anyhow::Result<u64> {
        let (mut found, mut expected) = ([0; RECORD_BYTES], [0; RECORD_BYTES]);
        let mut wrong = 0;
        for (index, version) in self.versions.iter().enumerate() {
            let record = self.record(index);
            record_after(record, *version, &mut expected);
            read(record, &mut found).with_context(|| format!("cannot read record {record}"))?;
            wrong += u64::from(found != expected);
        }
        Ok(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_turns_one_version_into_the_next() {
        for number in 0..100 {
            let (mut before, mut after) = ([0; RECORD_BYTES], [0; RECORD_BYTES]);
            record_after(number, 6, &mut before);
            record_after(number, 7, &mut after);
            assert_ne!(before, after);
            let change = Change { record: number, version: 7 };
            before[change.start()..][..CHANGED_BYTES].copy_from_slice(&change.bytes());
            assert_eq!(before, after);
        }
    }

    #[test]
    fn shares_are_disjoint_and_cover_every_record() {
        let mut records: Vec<_> = (0..3)
            .flat_map(|thread| {
                let share = Share::new(thread, 3, 10);
                (0..share.versions.len()).map(move |index| share.record(index)).collect::<Vec<_>>()
            })
            .collect();
        records.sort_unstable();
        assert_eq!(records, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn a_record_that_was_not_changed_as_noted_is_found() {
        let mut share = Share::new(1, 2, 8);
        let pages = share.draw_pages(3);
        let changes = share.draw_changes(&pages);
        share.note(&changes);
        let versions =
            |record| changes.iter().find(|change| change.record == record).map_or(0, |change| change.version);
        let wrong = |lost: Option<u64>| {
            share.count_wrong(|record, bytes| {
                record_after(record, if lost == Some(record) { 0 } else { versions(record) }, bytes);
                Ok(())
            })
        };
        assert_eq!(wrong(None).unwrap(), 0);
        assert_eq!(wrong(Some(changes[1].record)).unwrap(), 1);
    }
}
