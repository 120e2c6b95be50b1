//! Making stores durable.

use std::mem::MaybeUninit;

use vmio::SyncHandle;

use crate::failure::{contain, report};
use crate::ffi::mapping::{range, vmio_mapping};
use crate::ffi::memory::{given, hand_out};
use crate::status::vmio_status;

/// A sync under way.
pub struct vmio_sync_handle(SyncHandle);

/// Makes every store durable that was made before the call. Threads that go on storing are not held up. Pages that
/// cannot be written stay dirty, and the next sync tries them again. Of a mapping with a journal this is vmio_commit.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_sync(mapping: Option<&vmio_mapping>) -> vmio_status {
    report(|| Ok(given(mapping, "mapping")?.0.sync()?))
}

/// As vmio_sync, for the pages that a range touches.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_flush(mapping: Option<&vmio_mapping>, offset: u64, len: u64) -> vmio_status {
    report(|| {
        let mapping = &given(mapping, "mapping")?.0;
        Ok(mapping.flush(range(mapping, offset, len)?)?)
    })
}

/// Commits the stores to all mappings of the journal that this mapping was opened with, and returns when they are
/// durable. After a crash the files are as at the last commit that returned VMIO_OK, or at one that was under way. A
/// commit is a point in time between the call and its return. After an error nothing is lost: the stores become part of
/// the next commit.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_commit(mapping: Option<&vmio_mapping>) -> vmio_status {
    report(|| {
        given(mapping, "mapping")?.0.commit()?;
        Ok(())
    })
}

/// Starts a sync in the background, of the stores made before the call. vmio_sync_wait or vmio_sync_detach gives the
/// handle back.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_sync_begin(
    mapping: Option<&vmio_mapping>,
    sync: Option<&mut MaybeUninit<*mut vmio_sync_handle>>,
) -> vmio_status {
    report(|| hand_out(sync, "sync", || Ok(vmio_sync_handle(given(mapping, "mapping")?.0.sync_begin()?))))
}

/// Returns whether a sync has ended; true for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_sync_is_finished(sync: Option<&vmio_sync_handle>) -> bool {
    contain(true, || sync.is_none_or(|sync| sync.0.is_finished()))
}

/// Waits for the end of a sync, returns its status, and gives the handle back. NULL does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_sync_wait(sync: Option<Box<vmio_sync_handle>>) -> vmio_status {
    report(|| sync.map_or(Ok(()), |sync| Ok(sync.0.wait()?)))
}

/// Gives the handle back and lets the sync go on; only the next sync returns its failure. NULL does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_sync_detach(sync: Option<Box<vmio_sync_handle>>) {
    contain((), || drop(sync));
}
