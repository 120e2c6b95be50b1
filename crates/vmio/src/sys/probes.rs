//! Places that a tracer can attach to while the program runs: a `nop` each, and a note in the binary that says where.
//! `docs/design/probes.md` lists them for users. On the trap path nothing else may report: no log, no lock, no memory.
//!
//! Their arguments are at hand where they stand, so that next to nothing is computed for a tracer that is not there. Those of the trap path are inlined; around a commit a call
//! is nothing, and in generic code it spares a note for each copy that the linker leaves out.

use ::probe::probe;

/// A miss begins: the page at this address was absent, and is ours to bring in.
#[inline(always)]
pub(crate) fn miss_begin(address: usize, store: bool) {
    probe!(vmio, miss__begin, address, store);
}

/// It has ended, and whether the page is there.
#[inline(always)]
pub(crate) fn miss_end(address: usize, succeeded: bool) {
    probe!(vmio, miss__end, address, succeeded);
}

/// An evictor has been through: pages given back, dirty pages written, and pages that could not be.
#[inline(always)]
pub(crate) fn evict(freed: u32, written: u32, failed: u32) {
    probe!(vmio, evict, freed, written, failed);
}

/// A write request of the mapping at this address goes to its backing, or to its journal: then its pages may lie apart, and the
/// offset is that of the first.
#[inline(always)]
pub(crate) fn write_begin(mapping: usize, offset: u64, bytes: usize) {
    probe!(vmio, write__begin, mapping, offset, bytes);
}

/// It has landed or failed, and its pages are settled.
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
