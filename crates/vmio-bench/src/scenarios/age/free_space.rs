//! The free space of a file system: how much of it huge pages could map.

use std::ops::Range;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use serde::Serialize;

/// Bytes of a huge page.
const HUGE_BYTES: u64 = 2 << 20;
/// The unit of the command's output.
const SECTOR_BYTES: u64 = 512;

/// The free space of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FreeSpace {
    /// All of it.
    pub free_bytes: u64,
    /// The part in whole aligned extents of 2 MiB.
    pub aligned_bytes: u64,
    /// The rest by the length of its pieces: under 8 KiB, under 16 KiB, and so on, doubling; the last one has all from 1 MiB on.
    pub holes_bytes: [u64; 9],
}

impl FreeSpace {
    /// Sums up free ranges of bytes, which do not touch each other.
    pub fn of(ranges: impl IntoIterator<Item = Range<u64>>) -> FreeSpace {
        let mut sum = FreeSpace::default();
        for range in ranges {
            sum.free_bytes += range.end - range.start;
            let (first, last) = (range.start.next_multiple_of(HUGE_BYTES), range.end / HUGE_BYTES * HUGE_BYTES);
            if first < last {
                sum.aligned_bytes += last - first;
                sum.add_hole(first - range.start);
                sum.add_hole(range.end - last);
            } else {
                sum.add_hole(range.end - range.start);
            }
        }
        sum
    }

    fn add_hole(&mut self, bytes: u64) {
        let bucket = (bytes >> 13).checked_ilog2().map_or(0, |doublings| doublings as usize + 1);
        self.holes_bytes[bucket.min(8)] += bytes;
    }

    /// The aligned part, of one.
    pub fn aligned_share(&self) -> f64 {
        if self.free_bytes == 0 { 0.0 } else { self.aligned_bytes as f64 / self.free_bytes as f64 }
    }

    /// Asks the kernel for the free ranges of the file system that a folder is in, by xfs_io; ext4 and XFS answer. Nothing if it cannot say.
    pub fn ask(folder: &Path) -> anyhow::Result<Option<FreeSpace>> {
        let output = Command::new("xfs_io").args(["-r", "-c", "fsmap"]).arg(folder).output();
        let output = match output {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            output => output.context("cannot run xfs_io")?,
        };
        // It does not fail where the file system cannot say.
        let text = String::from_utf8_lossy(&output.stdout);
        if text.trim().is_empty() {
            return Ok(None);
        }
        Ok(Some(FreeSpace::of(free_ranges(&text)?)))
    }
}

/// The free ranges of a map as `xfs_io -c fsmap` prints it, a line each: `7: 259:0 [33976..262143]: free space 228168`, in sectors.
fn free_ranges(text: &str) -> anyhow::Result<Vec<Range<u64>>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for line in text.lines().filter(|line| line.contains("]: free space")) {
        let sectors = line.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(sectors, _)| sectors);
        let ends = sectors.and_then(|sectors| sectors.split_once(".."));
        let Some((Ok(first), Ok(last))) = ends.map(|(first, last)| (first.parse::<u64>(), last.parse::<u64>())) else {
            bail!("xfs_io printed {line:?}");
        };
        let range = first * SECTOR_BYTES..(last + 1) * SECTOR_BYTES;
        match ranges.last_mut() {
            Some(before) if before.end == range.start => before.end = range.end,
            _ => ranges.push(range),
        }
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_extents_are_counted_whole() -> anyhow::Result<()> {
        let text = "\t0: 7:0 [0..4095]: free space 4096\n\t1: 7:0 [4096..4103]: inodes 8\n\
                    \t2: 7:0 [4104..9000]: free space 4897\n\t3: 7:0 [9001..12295]: free space 3295\n";
        let space = FreeSpace::of(free_ranges(text)?);
        assert_eq!(space.free_bytes, (4096 + 4897 + 3295) * 512);
        // The second range, of two lines, has the extent from sector 8192 on and pieces on both sides.
        assert_eq!(space.aligned_bytes, 2 * HUGE_BYTES);
        assert_eq!(space.holes_bytes, [8 * 512, 0, 0, 0, 0, 0, 0, 0, 4088 * 512]);
        assert!(free_ranges("[x..5]: free space 3").is_err());
        Ok(())
    }
}
