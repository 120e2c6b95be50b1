//! Holds back threads that bring in pages faster than the device takes the writes that make space for them.
//!
//! Linux does the same to threads that make pages dirty (balance_dirty_pages), but from a share of all memory on, and
//! not of a cache.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, RawDir, open};

use crate::sys::hold;
use crate::sys::task_stat;

/// The least time between two looks at the threads: a look takes 10 µs for each.
const LOOKS_APART: Duration = Duration::from_millis(1);

/// A buffer for the names of some hundred threads at a time.
const ENTRIES_BYTES: usize = 8 << 10;

/// Knows which threads fault, and holds them.
#[derive(Default)]
pub(super) struct Throttle {
    /// How often each thread had faulted at the last look.
    faults: BTreeMap<i32, u64>,
    looked: Option<Instant>,
    is_holding: bool,
}

impl Throttle {
    /// Holds the threads that have faulted since the last look, unless that was less than [`LOOKS_APART`] ago.
    pub(super) fn hold(&mut self) {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOKS_APART) {
            return;
        }
        self.looked = Some(Instant::now());
        if let Err(error) = self.look() {
            tracing::debug!(%error, "threads that store are not held back");
        }
    }

    /// Lets all held threads go on.
    pub(super) fn release(&mut self) {
        if std::mem::take(&mut self.is_holding) {
            hold::end();
            self.faults.clear();
        }
        self.looked = None;
    }

    fn look(&mut self) -> io::Result<()> {
        self.is_holding = hold::begin()?;
        if !self.is_holding {
            return Ok(());
        }
        let before = std::mem::take(&mut self.faults);
        let folder = open("/proc/self/task", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        // The C library's directory streams take memory from the program's allocator, whose lock a held thread may
        // have.
        let mut buffer = Vec::with_capacity(ENTRIES_BYTES);
        let mut entries = RawDir::new(folder, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let Some(id) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok()) else { continue };
            // The thread may have ended by now.
            let Ok(stat) = fs::read_to_string(format!("/proc/self/task/{id}/stat")) else { continue };
            let Some((state, faults)) = faults_of(&stat) else { continue };
            self.faults.insert(id, faults);
            // Threads that wait in a call are left alone, since some calls end at a signal. A thread that waits for a
            // page to be read is held.
            if matches!(state, 'R' | 'D') && before.get(&id).is_some_and(|before| faults > *before) {
                hold::thread(id);
            }
        }
        Ok(())
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        self.release();
    }
}

/// The state of a thread, and how often it has faulted.
fn faults_of(stat: &str) -> Option<(char, u64)> {
    let mut fields = task_stat::fields_behind_name(stat)?;
    let state = fields.next()?.chars().next()?;
    // Minor and major faults are fields 10 and 12 of the line.
    let mut counts = fields.skip(6).step_by(2).map(str::parse::<u64>);
    let (minor, major) = (counts.next()?.ok()?, counts.next()?.ok()?);
    Some((state, minor + major))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn faults_stand_behind_whatever_name() {
        let stat = "7 (a) R (b) S 1 2 3 4 5 6 100 8 11 10 11 12";
        assert_eq!(faults_of(stat), Some(('S', 111)));
        assert_eq!(faults_of("7 (a) R 1"), None);
        let own = fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (state, before) = faults_of(&own).unwrap();
        std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = faults_of(&fs::read_to_string("/proc/thread-self/stat").unwrap()).unwrap().1;
        assert!(state == 'R' && after > before);
    }
}
