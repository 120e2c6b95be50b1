//! The result of a call: a number for programs to branch on.

use std::ffi::CStr;

use vmio::Error;

/// The result of a call. The numbers never change their meaning; later versions may add some.
#[allow(non_camel_case_types, reason = "the names are C's")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum vmio_status {
    /// Success.
    VMIO_OK = 0,
    /// An argument or option makes no sense, or contradicts another.
    VMIO_ERROR_INVALID = 1,
    /// The file could not be opened.
    VMIO_ERROR_OPEN = 2,
    /// The file is mapped already, by another process or in another way, which rules this mapping out.
    VMIO_ERROR_IN_USE = 3,
    /// The kernel denies what the engine needs; `vmio doctor` says what to change.
    VMIO_ERROR_NO_ENGINE = 4,
    /// The engine, the frames, this kernel or a mapping that was opened so cannot do it.
    VMIO_ERROR_UNSUPPORTED = 5,
    /// The range lies outside the mapping, or the length outside its reservation.
    VMIO_ERROR_OUT_OF_RANGE = 6,
    /// The mapping is read-only.
    VMIO_ERROR_READ_ONLY = 7,
    /// A page could not be read.
    VMIO_ERROR_READ = 8,
    /// A page arrived from the device, but is not what was written.
    VMIO_ERROR_CORRUPT = 9,
    /// Dirty pages could not be written. They stay dirty in memory, and the next sync tries them again; at the last close they are lost.
    VMIO_ERROR_WRITE = 10,
    /// A flush of the device failed: writes since the last good sync may be lost. Reopen the file.
    VMIO_ERROR_FLUSH = 11,
    /// The cache can give up no page: all are pinned, or dirty and unwritable.
    VMIO_ERROR_CACHE_FULL = 12,
    /// Pins hold as much of the cache as they may.
    VMIO_ERROR_TOO_MANY_PINS = 13,
    /// The length of the file could not be changed.
    VMIO_ERROR_RESIZE = 14,
    /// The handle belongs to the parent of this process.
    VMIO_ERROR_FORKED = 15,
    /// A system call failed that vmio cannot do without.
    VMIO_ERROR_SYSTEM = 16,
    /// An error that has no number yet.
    VMIO_ERROR_OTHER = 17,
    /// vmio has a bug, and stopped in the middle of the call. Do not use the handles of that call any more.
    VMIO_ERROR_BUG = 18,
    /// The journal has no space for the stores since the last commit. Nothing is lost; make it larger, or commit more
    /// often.
    VMIO_ERROR_JOURNAL_FULL = 19,
    /// The file is no journal, or the journal is damaged, unreadable or unwritable, or misses one of its files.
    VMIO_ERROR_JOURNAL = 20,
}

use vmio_status::*;

impl vmio_status {
    /// All statuses.
    const ALL: [Self; 21] = [
        VMIO_OK,
        VMIO_ERROR_INVALID,
        VMIO_ERROR_OPEN,
        VMIO_ERROR_IN_USE,
        VMIO_ERROR_NO_ENGINE,
        VMIO_ERROR_UNSUPPORTED,
        VMIO_ERROR_OUT_OF_RANGE,
        VMIO_ERROR_READ_ONLY,
        VMIO_ERROR_READ,
        VMIO_ERROR_CORRUPT,
        VMIO_ERROR_WRITE,
        VMIO_ERROR_FLUSH,
        VMIO_ERROR_CACHE_FULL,
        VMIO_ERROR_TOO_MANY_PINS,
        VMIO_ERROR_RESIZE,
        VMIO_ERROR_FORKED,
        VMIO_ERROR_SYSTEM,
        VMIO_ERROR_OTHER,
        VMIO_ERROR_BUG,
        VMIO_ERROR_JOURNAL_FULL,
        VMIO_ERROR_JOURNAL,
    ];

    /// The number of an error of the library.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::BadOption { .. } => VMIO_ERROR_INVALID,
            Error::Open { .. } | Error::NotDax { .. } => VMIO_ERROR_OPEN,
            Error::InUse { .. } | Error::AlreadyMapped { .. } => VMIO_ERROR_IN_USE,
            Error::NoUserfaultfd { .. } | Error::KernelFaultsDenied { .. } | Error::NoKernelModule { .. } => {
                VMIO_ERROR_NO_ENGINE
            }
            Error::Unsupported { .. } | Error::OneAddress { .. } | Error::NotAtomic { .. } => VMIO_ERROR_UNSUPPORTED,
            Error::OutOfRange { .. } | Error::BeyondReservation { .. } => VMIO_ERROR_OUT_OF_RANGE,
            Error::ReadOnly { .. } => VMIO_ERROR_READ_ONLY,
            Error::Read { .. } => VMIO_ERROR_READ,
            Error::Corrupt { .. } => VMIO_ERROR_CORRUPT,
            Error::Write { .. } | Error::Lost { .. } => VMIO_ERROR_WRITE,
            Error::Flush { .. } | Error::JournalFlush { .. } => VMIO_ERROR_FLUSH,
            Error::CacheExhausted { .. } | Error::NotShrunk { .. } | Error::FloorsTooHigh { .. } => {
                VMIO_ERROR_CACHE_FULL
            }
            Error::TooManyPins { .. } => VMIO_ERROR_TOO_MANY_PINS,
            Error::Resize { .. } => VMIO_ERROR_RESIZE,
            Error::Forked => VMIO_ERROR_FORKED,
            Error::System { .. } => VMIO_ERROR_SYSTEM,
            Error::JournalFull { .. } => VMIO_ERROR_JOURNAL_FULL,
            Error::NotAJournal { .. }
            | Error::JournalDamaged { .. }
            | Error::Journal { .. }
            | Error::Checkpoint { .. }
            | Error::JournaledFile { .. } => VMIO_ERROR_JOURNAL,
            _ => VMIO_ERROR_OTHER,
        }
    }

    /// A number in words, be it a status or not.
    pub(crate) fn describe(number: i32) -> &'static CStr {
        match Self::ALL.into_iter().find(|status| *status as i32 == number) {
            None => c"not a status of vmio",
            Some(VMIO_OK) => c"success",
            Some(VMIO_ERROR_INVALID) => c"an argument or option makes no sense",
            Some(VMIO_ERROR_OPEN) => c"the file cannot be opened",
            Some(VMIO_ERROR_IN_USE) => c"the file is in use",
            Some(VMIO_ERROR_NO_ENGINE) => c"the kernel denies what the engine needs",
            Some(VMIO_ERROR_UNSUPPORTED) => c"not supported by this engine, these frames, this kernel or this mapping",
            Some(VMIO_ERROR_OUT_OF_RANGE) => c"outside the mapping or its reservation",
            Some(VMIO_ERROR_READ_ONLY) => c"the mapping is read-only",
            Some(VMIO_ERROR_READ) => c"a page cannot be read",
            Some(VMIO_ERROR_CORRUPT) => c"a page is not what was written",
            Some(VMIO_ERROR_WRITE) => c"dirty pages cannot be written; they stay dirty in memory",
            Some(VMIO_ERROR_FLUSH) => c"the device cannot be flushed; reopen the file",
            Some(VMIO_ERROR_CACHE_FULL) => c"the cache has no page to give up",
            Some(VMIO_ERROR_TOO_MANY_PINS) => c"too much of the cache is pinned",
            Some(VMIO_ERROR_RESIZE) => c"the length of the file cannot be changed",
            Some(VMIO_ERROR_FORKED) => c"the handle belongs to the parent process",
            Some(VMIO_ERROR_SYSTEM) => c"a system call failed",
            Some(VMIO_ERROR_OTHER) => c"an error that has no number yet",
            Some(VMIO_ERROR_BUG) => c"a bug in vmio",
            Some(VMIO_ERROR_JOURNAL_FULL) => c"the journal has no room for the commit",
            Some(VMIO_ERROR_JOURNAL) => c"the journal or a file of it cannot be used",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_stands_at_its_place_and_has_words_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        for (number, status) in vmio_status::ALL.into_iter().enumerate() {
            assert_eq!(status as usize, number);
            assert!(seen.insert(vmio_status::describe(number as i32)), "{status:?}");
        }
        let beyond = vmio_status::describe(vmio_status::ALL.len() as i32);
        assert_eq!(beyond, c"not a status of vmio");
        assert_eq!(vmio_status::describe(-1), beyond);
    }

    #[test]
    fn errors_keep_their_kind() {
        assert_eq!(vmio_status::of(&Error::Forked), VMIO_ERROR_FORKED);
        assert_eq!(vmio_status::of(&Error::OutOfRange { range: 0..9, len: 8 }), VMIO_ERROR_OUT_OF_RANGE);
    }
}
