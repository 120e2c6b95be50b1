//! A life of a file system: files that come and go while as much of it is in use.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use anyhow::bail;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::files::{Files, Large};
use super::free_space::FreeSpace;
use super::profile::{self, DEPTHS};

/// How often a file system has time while as many bytes are written as it has.
const IDLE_PARTS: u64 = 16;

/// A file that is there.
#[derive(Debug, PartialEq)]
struct Living {
    /// When it is removed, in minutes.
    end: f64,
    number: u64,
    folder: usize,
}

impl Eq for Living {}

impl PartialOrd for Living {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Living {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.end.total_cmp(&other.end).then(self.number.cmp(&other.number))
    }
}

/// A file system and its age.
pub struct Life<'fs> {
    files: &'fs mut dyn Files,
    large: Large,
    random: SmallRng,
    /// The folders of each depth.
    folders: Vec<Vec<usize>>,
    living: BinaryHeap<Reverse<Living>>,
    /// The end of the file that was removed last, in minutes.
    now: f64,
    next: u64,
    written_bytes: u64,
    moved_bytes: u64,
}

impl<'fs> Life<'fs> {
    /// Makes the folders.
    pub fn new(files: &'fs mut dyn Files, large: Large, seed: u64) -> anyhow::Result<Life<'fs>> {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut folders: Vec<Vec<usize>> = Vec::new();
        let mut made = 0;
        for (_, count) in DEPTHS {
            let mut here = Vec::new();
            for _ in 0..count {
                let parent = match folders.last() {
                    Some(above) => above[random.random_range(0..above.len())],
                    None => 0,
                };
                made += 1;
                files.make_folder(parent, &format!("d{made}"))?;
                here.push(made);
            }
            folders.push(here);
        }
        Ok(Life {
            files,
            large,
            random,
            folders,
            living: BinaryHeap::new(),
            now: 0.0,
            next: 0,
            written_bytes: 0,
            moved_bytes: 0,
        })
    }

    /// The bytes that files can have, and how many of them are free.
    pub fn space(&self) -> anyhow::Result<(u64, u64)> {
        self.files.space()
    }

    /// The free space in detail; nothing if the file system cannot say.
    pub fn free_space(&self) -> anyhow::Result<Option<FreeSpace>> {
        self.files.free_space()
    }

    /// How many files there are.
    pub fn files(&self) -> usize {
        self.living.len()
    }

    /// The bytes that files have got so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// The bytes that the file system has moved by itself.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Creates files until the share `utilisation` of the whole is in use. Then removes the ones whose time has come and creates others, until
    /// files have got `churn_bytes`.
    pub fn live(&mut self, utilisation: f64, churn_bytes: u64) -> anyhow::Result<()> {
        let mut reached = false;
        let mut churned_from = self.written_bytes;
        let mut idle_at = self.written_bytes;
        while !reached || self.written_bytes - churned_from < churn_bytes {
            let (bytes, free) = self.files.space()?;
            // As it would have time once in a while.
            if self.written_bytes >= idle_at {
                self.moved_bytes += self.files.idle()?;
                idle_at = self.written_bytes + bytes / IDLE_PARTS;
            }
            let is_above = (bytes - free) as f64 >= bytes as f64 * utilisation;
            if is_above && !reached {
                (reached, churned_from) = (true, self.written_bytes);
                continue;
            }
            if is_above || !self.create()? {
                self.remove()?;
            }
        }
        self.moved_bytes += self.files.idle()?;
        Ok(())
    }

    /// Creates a file; false if there is no space.
    fn create(&mut self) -> anyhow::Result<bool> {
        let bytes = profile::size(&mut self.random);
        let depth = profile::depth(&mut self.random);
        let folder = self.folders[depth][self.random.random_range(0..self.folders[depth].len())];
        let number = self.next;
        self.next += 1;
        let end = self.now + profile::lifetime(&mut self.random);
        let is_there = self.files.create(folder, &format!("f{number}"), bytes, self.large)?;
        if is_there {
            self.written_bytes += bytes;
            self.living.push(Reverse(Living { end, number, folder }));
        }
        Ok(is_there)
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        let Some(Reverse(first)) = self.living.pop() else { bail!("the file system is too full without any file") };
        self.now = first.end;
        self.files.remove(first.folder, &format!("f{}", first.number))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Files as their sizes alone.
    #[derive(Default)]
    struct Counted {
        files: BTreeMap<(usize, String), u64>,
        folders: usize,
        calls: Vec<String>,
    }

    const CAPACITY: u64 = 256 << 20;

    impl Files for Counted {
        fn make_folder(&mut self, parent: usize, _: &str) -> anyhow::Result<()> {
            assert!(parent <= self.folders);
            self.folders += 1;
            Ok(())
        }

        fn create(&mut self, folder: usize, name: &str, bytes: u64, _: Large) -> anyhow::Result<bool> {
            if self.space()?.1 < bytes {
                return Ok(false);
            }
            self.calls.push(format!("{folder}/{name} {bytes}"));
            self.files.insert((folder, name.to_owned()), bytes);
            Ok(true)
        }

        fn remove(&mut self, folder: usize, name: &str) -> anyhow::Result<()> {
            assert!(self.files.remove(&(folder, name.to_owned())).is_some());
            Ok(())
        }

        fn space(&self) -> anyhow::Result<(u64, u64)> {
            Ok((CAPACITY, CAPACITY - self.files.values().sum::<u64>()))
        }

        fn free_space(&self) -> anyhow::Result<Option<FreeSpace>> {
            Ok(None)
        }
    }

    #[test]
    fn a_life_keeps_its_level_and_a_seed_repeats_it() -> anyhow::Result<()> {
        let lives = [1, 1, 2].map(|seed| -> anyhow::Result<Vec<String>> {
            let mut files = Counted::default();
            let mut life = Life::new(&mut files, Large::Append, seed)?;
            for (utilisation, churn) in [(0.3, CAPACITY), (0.8, 2 * CAPACITY)] {
                let before = life.written_bytes();
                life.live(utilisation, churn)?;
                assert!(life.written_bytes() - before >= churn);
                let (bytes, free) = life.files.space()?;
                let used = (bytes - free) as f64 / bytes as f64;
                // The largest file has 16 MiB.
                assert!((utilisation - 0.07..utilisation + 0.07).contains(&used), "{used}");
            }
            assert!(life.files() > 100);
            Ok(files.calls)
        });
        let [one, same, other] = lives;
        let one = one?;
        assert_eq!(one, same?);
        assert_ne!(one, other?);
        Ok(())
    }
}
