//! Where `unsafe` may stand.

use anyhow::Result;
use proc_macro2::TokenTree;

use super::tree::{each_token, tokens};
use super::{Breach, Tree};

/// Raw system calls, signal handling and mapped memory live here and nowhere else.
const ALLOWED: &[&str] = &[
    "crates/vmio/src/sys/",
    "crates/vmio/src/engine/",
    // What a forked child takes over from its parent.
    "crates/vmio/src/program_map.rs",
    "crates/vmio-posix/src/program_maps.rs",
    "crates/vmio/src/mapping/",
    // Copies between frames and buffers, and pointers to regions that the eviction gate keeps alive.
    "crates/vmio/src/cache/fetch/caller_reads.rs",
    "crates/vmio/src/cache/call_holds.rs",
    "crates/vmio/src/cache/collect.rs",
    "crates/vmio/src/cache/copy_slots.rs",
    "crates/vmio/src/cache/fetch/request.rs",
    "crates/vmio/src/cache/fetch/ring_fetcher.rs",
    "crates/vmio/src/cache/held_for_calls.rs",
    "crates/vmio/src/cache/inactive.rs",
    "crates/vmio/src/cache/load.rs",
    "crates/vmio/src/cache/page_buffers.rs",
    "crates/vmio/src/cache/evict.rs",
    "crates/vmio/src/cache/refusal.rs",
    "crates/vmio/src/cache/region/mod.rs",
    "crates/vmio/src/cache/region/page_table.rs",
    "crates/vmio/src/cache/region_ref.rs",
    "crates/vmio/src/cache/stream.rs",
    "crates/vmio/src/cache/strided.rs",
    "crates/vmio/src/cache/tables.rs",
    "crates/vmio/src/cache/whole_spans.rs",
    "crates/vmio/src/cache/write_batch.rs",
    "crates/vmio/src/cache/write_run.rs",
    // References to queued spans.
    "crates/vmio/src/policy/span_ref.rs",
    "crates/vmio/examples/",
    "crates/vmio-posix/examples/",
    "crates/vmio/tests/",
    // Children that are forked, and ended without their parent's destructors.
    "crates/vmio-kv/tests/fork.rs",
    "crates/vmio-kv/tests/scan_allocations.rs",
    // References to what is published in a volume's mapping, and to what was appended to the end of its log.
    "crates/vmio-kv/src/device/mod.rs",
    "crates/vmio-kv/src/log/tail_chunk.rs",
    // Words in memory that is taken where they are written.
    "crates/vmio-kv/src/sparse_words.rs",
    // Types that may lie in memory that the kernel filled with zeros.
    "crates/vmio-core/src/page/span.rs",
    "crates/vmio-core/src/page/word.rs",
    "crates/vmio-core/src/zero_init.rs",
    // What C calls: functions without mangled names, and memory that C vouches for.
    "crates/vmio-c/src/ffi/",
    // A lock on a byte, for which rustix has no call.
    "crates/operation-log/src/recovery_lock.rs",
    // Functions of the C library's names and types, and what they are handed.
    "crates/vmio-posix/src/exports/",
    "crates/vmio-posix/src/real.rs",
    // What lives as long as the process, and the handler of forks.
    "crates/vmio-posix/src/cancellation.rs",
    "crates/vmio-posix/src/entry.rs",
    "crates/vmio-posix/src/last_thread.rs",
    "crates/vmio-posix/src/messages.rs",
    "crates/vmio-posix/src/own_heap.rs",
    "crates/vmio-posix/src/file.rs",
    "crates/vmio-posix/src/fork.rs",
    "crates/vmio-posix/src/process.rs",
    // State that calls share without a lock, descriptors that the program has open, and the lease manager's system calls.
    "crates/vmio-posix/src/leased/answer.rs",
    "crates/vmio-posix/src/leased/call.rs",
    "crates/vmio-posix/src/leased/description.rs",
    "crates/vmio-posix/src/leased/descriptors.rs",
    "crates/vmio-posix/src/leased/lease.rs",
    "crates/vmio-posix/src/leased/lease_manager.rs",
    "crates/vmio-posix/src/leased/lease_requests.rs",
    "crates/vmio-posix/src/leased/leased_backing.rs",
    "crates/vmio-posix/src/leased/opened.rs",
    "crates/vmio-posix/src/leased/own_descriptor.rs",
    "crates/vmio-posix/src/sigbus.rs",
    "crates/vmio-posix/src/watched.rs",
    "crates/vmio-posix/src/uncovered_programs.rs",
    "crates/vmio-posix/src/leased/report.rs",
    "crates/vmio-posix/src/leased/strict/logs.rs",
    "crates/vmio-posix/src/synchronous/",
    "crates/vmio-posix/src/unshared_fd_thread.rs",
    "crates/vmio-posix/src/sharing.rs",
    // The C library's allocator, functions of its names and of Rust's, mimalloc's memory, and a child's heap in its parent's place.
    "crates/vmio-heap-preload/src/at_load.rs",
    "crates/vmio-heap-preload/src/c_library.rs",
    "crates/vmio-heap-preload/src/exports.rs",
    "crates/vmio-heap-preload/src/no_room.rs",
    "crates/vmio-heap/src/allocator.rs",
    "crates/vmio-heap/src/fork.rs",
    "crates/vmio-heap/src/heap.rs",
    "crates/vmio-heap/src/memory.rs",
    // The protection of views.
    "crates/vmio-posix/src/windows.rs",
    // Environments of LMDB, and RocksDB's C interface.
    "crates/kv-peers/src/lmdb.rs",
    "crates/kv-peers/src/rocksdb/library.rs",
    // The mapping of a medium, and stores past the caches.
    "crates/vmio-pmfs/src/medium/mapped.rs",
    // A process's own virtual machine: its page tables, its guest code, the thread's registers, and KVM's memory.
    "crates/vmio-ring0/src/address_space.rs",
    "crates/vmio-ring0/src/bases.rs",
    "crates/vmio-ring0/src/block.rs",
    "crates/vmio-ring0/src/calls/",
    "crates/vmio-ring0/examples/",
    "crates/vmio-ring0/src/cores.rs",
    "crates/vmio-ring0/src/deferral.rs",
    "crates/vmio-ring0/src/exposed.rs",
    "crates/vmio-ring0/src/exposures.rs",
    "crates/vmio-ring0/src/faults.rs",
    "crates/vmio-ring0/src/forward.rs",
    "crates/vmio-ring0/src/frames.rs",
    "crates/vmio-ring0/src/lock.rs",
    "crates/vmio-ring0/src/machine.rs",
    "crates/vmio-ring0/src/managed.rs",
    "crates/vmio-ring0/src/memory.rs",
    "crates/vmio-ring0/src/monitor.rs",
    "crates/vmio-ring0/src/native.rs",
    "crates/vmio-ring0/src/outside_call.rs",
    "crates/vmio-ring0/src/page_tables/",
    "crates/vmio-ring0/src/program.rs",
    "crates/vmio-ring0/src/raw.rs",
    "crates/vmio-ring0/src/restore.rs",
    "crates/vmio-ring0/src/resume.rs",
    "crates/vmio-ring0/src/shootdown.rs",
    "crates/vmio-ring0/src/signals.rs",
    "crates/vmio-ring0/src/stubs.rs",
    "crates/vmio-ring0/src/touch.rs",
    "crates/vmio-ring0/src/vcpu.rs",
    "crates/vmio-ring0/tests/",
    // The benchmarks load and store through raw pointers, and make the calls that Linux mmap needs; children are killed, memory is asked for.
    "crates/vmio-measure/src/child.rs",
    "crates/vmio-measure/src/content.rs",
    "crates/vmio-measure/src/device_cache.rs",
    "crates/vmio-measure/src/device_counters.rs",
    "crates/vmio-measure/src/engines/",
    "crates/vmio-measure/src/kv/reopen.rs",
    "crates/vmio-measure/src/process.rs",
    // Reads of io_uring into a buffer, and an environment of LMDB.
    "crates/vmio-bench/src/raw_reads.rs",
    "crates/vmio-bench/src/scenarios/commit/stores/lmdb.rs",
];

/// Each `unsafe` elsewhere, in macros too.
pub fn check(tree: &Tree) -> Result<Vec<Breach>> {
    let mut breaches = Vec::new();
    for (name, text) in tree.with_ending(".rs") {
        if ALLOWED.iter().any(|place| name.starts_with(place)) {
            continue;
        }
        each_token(tokens(name, text)?, &mut |token| {
            if let TokenTree::Ident(word) = token
                && word == "unsafe"
            {
                let what = "unsafe outside the places that may have it (crates/xtask/src/tidy/unsafe_places.rs)";
                breaches.push(Breach::new(name, word.span().start().line, what));
            }
        });
    }
    let gone = ALLOWED.iter().filter(|place| !tree.names().iter().any(|name| name.starts_with(**place)));
    breaches.extend(gone.map(|place| Breach::new(file!(), 1, format!("{place} may have unsafe, but is not there"))));
    Ok(breaches)
}
