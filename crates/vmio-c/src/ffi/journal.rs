//! Journals, by which commits are failure-atomic.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use vmio::journal::{Journal, JournalOptions};
use zerocopy::FromZeros;

use crate::failure::{contain, report};
use crate::ffi::memory::{hand_out, read_options, read_path};
use crate::status::vmio_status;

/// A file beside the data, through which mappings change their files by commits alone.
pub struct vmio_journal(pub(super) Journal);

/// Options of a journal. Zero is the default of every field but `size`.
#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
pub struct vmio_journal_options {
    /// sizeof(struct vmio_journal_options).
    pub size: usize,
    /// The share of the journal in use, up to 1, from which on committed pages are brought into the files; 0.5 by default.
    pub checkpoint_at: f64,
    /// The share of the journal, up to 0.9, that is kept free for commits; 0.25 by default. It should have space for
    /// all pages that become dirty between two commits.
    pub commit_reserve: f64,
}

/// Makes a journal of `len` bytes, 384 KiB at least, in a new file or over an existing one; `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmio_journal_create(
    path: *const c_char,
    len: u64,
    options: *const vmio_journal_options,
    journal: Option<&mut MaybeUninit<*mut vmio_journal>>,
) -> vmio_status {
    report(|| {
        hand_out(journal, "journal", || {
            // SAFETY: the caller vouches for the path and the options.
            let (path, options) = unsafe { (read_path(path)?, read_options(options, "options")?) };
            Ok(vmio_journal(Journal::create_file(path, len, options.journal())?))
        })
    })
}

/// Opens a journal, and brings its files to the state of the last acknowledged commit before it returns; `options` may be
/// NULL. Open the journal before its files, which must be where they were.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmio_journal_open(
    path: *const c_char,
    options: *const vmio_journal_options,
    journal: Option<&mut MaybeUninit<*mut vmio_journal>>,
) -> vmio_status {
    report(|| {
        hand_out(journal, "journal", || {
            // SAFETY: the caller vouches for the path and the options.
            let (path, options) = unsafe { (read_path(path)?, read_options(options, "options")?) };
            let (journal, _) = Journal::open_file(path, options.journal())?;
            Ok(vmio_journal(journal))
        })
    })
}

/// Gives the handle back. The journal itself closes with the last mapping that uses it. NULL does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_journal_close(journal: Option<Box<vmio_journal>>) {
    contain((), || drop(journal));
}

impl vmio_journal_options {
    fn journal(&self) -> JournalOptions {
        let mut options = JournalOptions::new();
        if self.checkpoint_at != 0.0 {
            options = options.checkpoint_at(self.checkpoint_at);
        }
        if self.commit_reserve != 0.0 {
            options = options.commit_reserve(self.commit_reserve);
        }
        options
    }
}
