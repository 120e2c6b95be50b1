//! The descriptors by which vmio itself reads and writes mapped files.
//!
//! The program does not know of them. It must not close them when it closes all open descriptors. If a file is open by these alone, the
//! program has closed it.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most descriptors that can be recorded: the kernel's default limit of a process (fs.nr_open).
const DESCRIPTORS: usize = 1 << 20;

static OWN: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];

/// Whether a descriptor is vmio's.
pub(crate) fn contains(fd: RawFd) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The lowest descriptor of vmio's in a range.
pub(crate) fn first_in(first: u32, last: u32) -> Option<u32> {
    let last = last.min(DESCRIPTORS as u32 - 1);
    let mut fd = first;
    while fd <= last {
        let word = OWN[fd as usize / 64].load(Ordering::Relaxed) >> (fd % 64);
        if word != 0 {
            return Some(fd + word.trailing_zeros()).filter(|found| *found <= last);
        }
        fd = (fd / 64 + 1) * 64;
    }
    None
}

/// Records a descriptor as vmio's; false if its number is too large.
pub(crate) fn insert(fd: RawFd) -> bool {
    place(fd).map(|(word, bit)| word.fetch_or(bit, Ordering::Relaxed)).is_some()
}

/// Removes a descriptor that is about to be closed.
pub(crate) fn remove(fd: RawFd) {
    place(fd).map(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed));
}

/// Forgets all of them in a forked child, which may close any descriptor.
pub(crate) fn clear() {
    OWN.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OWN.get(fd / 64)?, 1 << (fd % 64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_descriptor_has_a_place_of_its_own() {
        for fd in [700_000, 700_001, DESCRIPTORS as RawFd - 1] {
            assert!(!contains(fd) && insert(fd) && contains(fd));
        }
        assert_eq!(first_in(600_000, 699_999), None);
        assert_eq!([first_in(0, u32::MAX), first_in(700_001, 700_001)], [Some(700_000), Some(700_001)]);
        assert_eq!(first_in(700_002, u32::MAX), Some(DESCRIPTORS as u32 - 1));
        remove(700_000);
        assert!(!contains(700_000) && contains(700_001));
        assert!(!contains(-1) && !insert(-1) && !insert(DESCRIPTORS as RawFd));
        clear();
        assert!(!contains(700_001));
    }
}
