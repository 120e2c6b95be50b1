//! Places to which a tracer can attach while the program runs. Each is a `nop`, and a note in the binary that gives its
//! address. `docs/design/probes.md` lists them for users. On the trap path nothing else may report: no log, no lock, no
//! memory.
//!
//! Their arguments are at hand in the surrounding code, so that without a tracer next to nothing is computed. Probes of
//! the trap path are inlined. Around a commit the cost of a call does not matter. In generic code a call avoids a note
//! for each copy that the linker leaves out.

use ::probe::probe;

/// A miss begins: the page at this address was absent, and this thread brings it in.
#[inline(always)]
pub(crate) fn miss_begin(address: usize, store: bool) {
    probe!(vmio, miss__begin, address, store);
}

/// The miss has ended; `succeeded` says whether the page is there.
#[inline(always)]
pub(crate) fn miss_end(address: usize, succeeded: bool) {
    probe!(vmio, miss__end, address, succeeded);
}

/// An evictor has ended a round: pages given back, dirty pages written, and pages whose write failed.
#[inline(always)]
pub(crate) fn evict(freed: u32, written: u32, failed: u32) {
    probe!(vmio, evict, freed, written, failed);
}

/// A write request of the mapping at this address goes to its backing or its journal. For a journal the pages may lie
/// apart, and the offset is that of the first.
#[inline(always)]
pub(crate) fn write_begin(mapping: usize, offset: u64, bytes: usize) {
    probe!(vmio, write__begin, mapping, offset, bytes);
}

/// The write request has landed or failed, and its pages are settled.
#[inline(always)]
pub(crate) fn write_end(mapping: usize, offset: u64, bytes: usize) {
    probe!(vmio, write__end, mapping, offset, bytes);
}

/// A thread leads a commit.
#[inline(never)]
pub(crate) fn commit_begin() {
    probe!(vmio, commit__begin);
}

/// The commit is acknowledged under this number; 0 if it failed.
#[inline(never)]
pub(crate) fn commit_end(number: u64) {
    probe!(vmio, commit__end, number);
}
