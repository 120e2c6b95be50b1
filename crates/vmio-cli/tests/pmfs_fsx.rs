//! Random calls on one file of a mounted vmio-pmfs, against its bytes in memory: after fsx of Apple and the Linux Test Project.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};
use rustix::io::Errno;
use vmio::{Access, SharedMap};

use crate::common::TestResult;
use crate::pmfs::{Mounted, can_mount, fsck, made};

/// The longest file, and the longest range of a call.
const LENGTH_MAX: u64 = 3 << 20;
const RANGE_MAX: u64 = 200_000;

/// A file, and the bytes that it must have.
struct Exerciser {
    path: PathBuf,
    file: File,
    bytes: Vec<u8>,
    random: SmallRng,
}

fn opened(path: &Path) -> std::io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

impl Exerciser {
    fn new(path: PathBuf, seed: u64) -> std::io::Result<Exerciser> {
        let file = opened(&path)?;
        Ok(Exerciser { path, file, bytes: Vec::new(), random: SmallRng::seed_from_u64(seed) })
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// A range that may reach behind the end; often one of whole blocks, or a large one.
    fn range(&mut self) -> (u64, u64) {
        let most = if self.random.random_range(0..10) == 0 { LENGTH_MAX } else { RANGE_MAX };
        let unit = if self.random.random_range(0..4) == 0 { 4096 } else { 1 };
        let at = self.random.random_range(0..LENGTH_MAX) / unit * unit;
        let at = if self.random.random_range(0..3) > 0 { at % (self.len() + 1) } else { at };
        let len = (self.random.random_range(1..=most) / unit * unit).max(unit);
        (at, len.min(LENGTH_MAX - at).max(1))
    }

    /// A range that is in the file, and nothing if the file is empty.
    fn inside(&mut self) -> Option<(u64, u64)> {
        let (at, len) = self.range();
        let at = at % self.len().max(1);
        (self.len() > 0).then(|| (at, len.min(self.len() - at)))
    }

    fn patterned(&mut self, len: u64) -> Vec<u8> {
        let first: u8 = self.random.random_range(1..=255);
        (0..len).map(|at| first.wrapping_add((at / 7) as u8)).collect()
    }

    /// The bytes that a range must have; it is as long as the file then, unless that is longer.
    fn expect(&mut self, at: u64, bytes: &[u8]) {
        let end = at as usize + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[at as usize..end].copy_from_slice(bytes);
    }

    /// Makes one call, and says which.
    fn step(&mut self) -> std::io::Result<String> {
        let (at, len) = self.range();
        let call = self.random.random_range(0..15);
        let keep = FallocateFlags::KEEP_SIZE;
        match call {
            0 | 1 => {
                let mut read = vec![0; len as usize];
                let there = self.file.read_at(&mut read, at)?;
                let from = at.min(self.len()) as usize;
                let expected = &self.bytes[from..(from + len as usize).min(self.bytes.len())];
                assert!(read[..there] == *expected, "a read of {len} bytes at {at}");
            }
            2 | 3 => {
                let bytes = self.patterned(len);
                self.file.write_all_at(&bytes, at)?;
                self.expect(at, &bytes);
            }
            4 => {
                self.file.set_len(at)?;
                self.bytes.resize(at as usize, 0);
            }
            5 | 6 => {
                let Some((at, len)) = self.inside() else { return Ok("nothing to map".to_owned()) };
                let map = SharedMap::open(self.file.as_fd(), self.len(), Access::ReadWrite)?;
                let mut read = vec![0; len as usize];
                map.read_at(at, &mut read).map_err(std::io::Error::other)?;
                assert!(read == self.bytes[at as usize..][..len as usize], "a map's {len} bytes at {at}");
                if call == 6 {
                    let bytes = self.patterned(len);
                    map.write_at(at, &bytes).map_err(std::io::Error::other)?;
                    self.expect(at, &bytes);
                    if self.random.random_range(0..2) == 0 {
                        self.file.sync_all()?;
                    }
                    return Ok(format!("a store of {len} bytes at {at}"));
                }
            }
            7 => {
                fallocate(&self.file, FallocateFlags::PUNCH_HOLE | keep, at, len)?;
                let end = (at + len).min(self.len());
                self.bytes[at.min(end) as usize..end as usize].fill(0);
            }
            8 | 9 => {
                let flags = if call == 8 { FallocateFlags::empty() } else { keep };
                fallocate(&self.file, FallocateFlags::ZERO_RANGE | flags, at, len)?;
                if call == 8 {
                    self.bytes.resize(self.bytes.len().max((at + len) as usize), 0);
                }
                let end = (at + len).min(self.len());
                self.bytes[at.min(end) as usize..end as usize].fill(0);
            }
            10 => {
                fallocate(&self.file, FallocateFlags::empty(), at, len)?;
                self.bytes.resize(self.bytes.len().max((at + len) as usize), 0);
            }
            11 => fallocate(&self.file, keep, at, len)?,
            12 => {
                let Some((from, len)) = self.inside() else { return Ok("nothing to copy".to_owned()) };
                // Ranges of one file must not overlap.
                let len = len.min(from.abs_diff(at)).min(LENGTH_MAX - at);
                let (mut from_at, mut to_at) = (from, at);
                let copied =
                    copy_file_range(&self.file, Some(&mut from_at), &self.file, Some(&mut to_at), len as usize)?;
                let bytes = self.bytes[from as usize..][..copied].to_vec();
                if copied > 0 {
                    self.expect(at, &bytes);
                }
                return Ok(format!("a copy of {len} bytes from {from} to {at}"));
            }
            13 => {
                // The kernel asks the server, which does not know of stores that have not been written back.
                self.file.sync_data()?;
                self.look_for_data(at)?;
            }
            _ => self.file = opened(&self.path)?,
        }
        Ok(format!("call {call} of {len} bytes at {at}"))
    }

    /// Holes are zeros.
    fn look_for_data(&self, at: u64) -> std::io::Result<()> {
        let end = match seek(&self.file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => self.len(),
            Err(error) => return Err(error.into()),
        };
        assert!(end <= self.len() || at >= self.len(), "data at {end} of {}", self.len());
        let hole = &self.bytes[at.min(self.len()) as usize..end.min(self.len()) as usize];
        assert!(hole.iter().all(|byte| *byte == 0), "a hole from {at} to {end}");
        Ok(())
    }
}

#[test]
fn a_file_has_the_bytes_that_random_calls_gave_it() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    for seed in test_depth::seeds(4, 200) {
        let mounted = Mounted::new(&image, &folder)?;
        let mut exerciser = Exerciser::new(folder.join(format!("{seed}")), seed)?;
        let mut last = String::new();
        for step in 0..300 {
            last = exerciser.step().map_err(|error| format!("seed {seed}, step {step}, behind {last}: {error}"))?;
            let length = exerciser.file.metadata()?.len();
            assert_eq!(length, exerciser.len(), "seed {seed}, step {step}: {last}");
            // All bytes, where a failure is looked for.
            if test_depth::seeds_are_chosen() || step % 50 == 0 {
                assert!(fs::read(&exerciser.path)? == exerciser.bytes, "seed {seed}, step {step}: {last}");
            }
        }
        let (path, bytes) = (exerciser.path.clone(), exerciser.bytes.clone());
        drop(exerciser);
        mounted.unmount()?;
        fsck(&image)?;
        let mounted = Mounted::new(&image, &folder)?;
        assert!(fs::read(&path)? == bytes, "seed {seed}, after a remount");
        fs::remove_file(&path)?;
        mounted.unmount()?;
    }
    Ok(())
}
