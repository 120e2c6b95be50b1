/*
 * vmio: memory-mapped I/O for fast storage. vmio(3) is the overview; this file documents each function, once.
 *
 * Every function may be called by any thread at any time, and handles may be shared by threads; only that a handle
 * must not be in use when it is closed, freed, unpinned or waited for. None may be called in a signal handler but
 * vmio_pointer, vmio_len, vmio_strerror, vmio_version and vmio_abi_version; mapped memory may be loaded and stored to
 * there. Handles are of no use to a forked child, which opens files anew.
 *
 * Functions that can fail return VMIO_OK (0) or what went wrong; vmio_last_error then has the details. Lengths and
 * offsets are in bytes.
 *
 * Structures that begin with `size` may grow at their end: set it to sizeof the structure and leave to zero what you do
 * not care about, which stands for the default.
 */


#ifndef VMIO_H
#define VMIO_H

/* Written by cbindgen (`make header`): change crates/vmio-c/src/ffi and not this file. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 As VMIO_ENGINE_SIGBUS; where userfaultfd is denied, as in most containers, VMIO_ENGINE_MANAGED.
 */
#define VMIO_ENGINE_AUTO 0

/*
 The faulting thread handles its own fault in a SIGBUS handler that the cache installs. Threads that touch mapped memory
 must not block SIGBUS, and system calls get pointers into pinned ranges only (others fail with EFAULT).
 */
#define VMIO_ENGINE_SIGBUS 1

/*
 Reader threads of the cache handle faults while the faulting thread sleeps: no signal handler, and system calls take
 mapped pointers. Misses take longer, and a right is needed; `vmio doctor` says which.
 */
#define VMIO_ENGINE_READER_THREAD 2

/*
 The kernel's own mmap takes the faults, and a background reclaimer of vmio keeps the budget.
 */
#define VMIO_ENGINE_MANAGED 3

/*
 The kernel module vmio.ko takes the faults, and system calls take mapped pointers. Without it, or the right to open
 /dev/vmio, VMIO_ERROR_NO_ENGINE.
 */
#define VMIO_ENGINE_KERNEL 4

/*
 The frames of the cache's options; if these are VMIO_FRAMES_AUTO too, VMIO_FRAMES_READ_MOSTLY.
 */
#define VMIO_FRAMES_AUTO 0

/*
 Private pages: cheapest to bring in and to evict.
 */
#define VMIO_FRAMES_READ_MOSTLY 1

/*
 For pages that are read and then stored to, and for stores beside a sync.
 */
#define VMIO_FRAMES_MIXED 2

/*
 Huge pages that are read ahead, for scans of mappings that are read-only.
 */
#define VMIO_FRAMES_STREAM 3

/*
 As VMIO_FRAMES_READ_MOSTLY, with huge pages for the scans of mappings that are read-only.
 */
#define VMIO_FRAMES_DYNAMIC 4

/*
 The best for most programs: S3-FIFO; over frames that can be deactivated, span by span.
 */
#define VMIO_POLICY_AUTO 0

/*
 First in, first out.
 */
#define VMIO_POLICY_FIFO 1

/*
 Pages that are wanted again soon after their eviction stay longer.
 */
#define VMIO_POLICY_KEEP_REFAULTED 2

/*
 New pages leave soon, those that come back stay the longer the more often they did.
 */
#define VMIO_POLICY_S3_FIFO 3

/*
 Lock the cache in memory if swap is on and the process may.
 */
#define VMIO_LOCK_AUTO 0

/*
 Do not lock it.
 */
#define VMIO_LOCK_NEVER 1

/*
 Lock it, or fail.
 */
#define VMIO_LOCK_REQUIRE 2

/*
 The binary interface that this header describes. Programs built for another major version do not load; a minor
 version adds functions, values, or fields at the end of structures. Until the first release (0.x) it may also give numbers
 another meaning, which the changelog says.
 */
#define VMIO_ABI_MAJOR 0

/*
 See VMIO_ABI_MAJOR.
 */
#define VMIO_ABI_MINOR 6

/*
 Loads and stores.
 */
#define VMIO_READ_WRITE 0

/*
 Loads only.
 */
#define VMIO_READ_ONLY 1

/*
 The file must exist.
 */
#define VMIO_CREATE_NEVER 0

/*
 A file that does not exist is made, `len` zeros long; one that exists stays as it is.
 */
#define VMIO_CREATE_IF_MISSING 1

/*
 Makes the file, or discards its contents; it is `len` zeros long.
 */
#define VMIO_CREATE_EMPTY 2

/*
 A load of a page that cannot be read is a SIGBUS.
 */
#define VMIO_ON_READ_ERROR_SIGBUS 0

/*
 A load of such a page finds it filled with the 8 bytes of `poison`; vmio_take_read_error returns the error.
 */
#define VMIO_ON_READ_ERROR_POISON 1

/*
 Added to a priority from 0 (keep) to 255 (evict first) in vmio_open_options, where 0 alone is the default, 128.
 */
#define VMIO_PRIORITY_SET 256

/*
 As the length of a range: up to the end of the mapping.
 */
#define VMIO_TO_END UINT64_MAX

/*
 Nothing special: no read-ahead.
 */
#define VMIO_ADVICE_NORMAL 0

/*
 Accesses jump about: no read-ahead.
 */
#define VMIO_ADVICE_RANDOM 1

/*
 Accesses go upwards: a miss reads `value` bytes from its page on; 0 for the most, 128 KiB.
 */
#define VMIO_ADVICE_SEQUENTIAL 2

/*
 The range will be wanted soon: read it now, as far as the cache has pages for it.
 */
#define VMIO_ADVICE_WILL_NEED 3

/*
 The range will not be wanted soon: write its dirty pages and give all its pages up.
 */
#define VMIO_ADVICE_DONT_NEED 4

/*
 The device holds garbage that the program is about to write over: misses fill pages with zeros instead of reading.
 */
#define VMIO_ADVICE_FRESH 5

/*
 The program needs the contents no more: drop them without writing. Loads before the next store get undefined bytes.
 */
#define VMIO_ADVICE_FREE 6

/*
 The order of eviction: `value` is 0 (keep) to 255 (evict first).
 */
#define VMIO_ADVICE_PRIORITY 7

/*
 How often each page is wanted, for pages that come in from now on: `value` is VMIO_REUSE_*.
 */
#define VMIO_ADVICE_REUSE 8

/*
 Only the device's contents count: drop pages in memory without writing them, and forget which were fresh. For
 programs that write the file past the mapping; stores since the last sync are lost.
 */
#define VMIO_ADVICE_INVALIDATE 9

/*
 The program needs the range no more for now: its pages are evicted before those in use, when the cache needs space.
 */
#define VMIO_ADVICE_COLD 10

/*
 Not known: the cache finds out.
 */
#define VMIO_REUSE_UNKNOWN 0

/*
 Once, or several times within a short while, as by a scan: no page counts as wanted again.
 */
#define VMIO_REUSE_ONCE 1

/*
 Again and again, if only after a long time: every page counts as wanted often from the first time on.
 */
#define VMIO_REUSE_OFTEN 2

/*
 The result of a call. The numbers never change their meaning; later versions may add some.
 */
enum vmio_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     Success.
     */
    VMIO_OK = 0,
    /*
     An argument or option makes no sense, or contradicts another.
     */
    VMIO_ERROR_INVALID = 1,
    /*
     The file could not be opened.
     */
    VMIO_ERROR_OPEN = 2,
    /*
     The file is mapped already, by another process or in another way, which rules this mapping out.
     */
    VMIO_ERROR_IN_USE = 3,
    /*
     The kernel denies what the engine needs; `vmio doctor` says what to change.
     */
    VMIO_ERROR_NO_ENGINE = 4,
    /*
     The engine, the frames, this kernel or a mapping that was opened so cannot do it.
     */
    VMIO_ERROR_UNSUPPORTED = 5,
    /*
     The range lies outside the mapping, or the length outside its reservation.
     */
    VMIO_ERROR_OUT_OF_RANGE = 6,
    /*
     The mapping is read-only.
     */
    VMIO_ERROR_READ_ONLY = 7,
    /*
     A page could not be read.
     */
    VMIO_ERROR_READ = 8,
    /*
     A page arrived from the device, but is not what was written.
     */
    VMIO_ERROR_CORRUPT = 9,
    /*
     Dirty pages could not be written. They stay dirty in memory, and the next sync tries them again; at the last close they are lost.
     */
    VMIO_ERROR_WRITE = 10,
    /*
     A flush of the device failed: writes since the last good sync may be lost. Reopen the file.
     */
    VMIO_ERROR_FLUSH = 11,
    /*
     The cache can give up no page: all are pinned, or dirty and unwritable.
     */
    VMIO_ERROR_CACHE_FULL = 12,
    /*
     Pins hold as much of the cache as they may.
     */
    VMIO_ERROR_TOO_MANY_PINS = 13,
    /*
     The length of the file could not be changed.
     */
    VMIO_ERROR_RESIZE = 14,
    /*
     The handle belongs to the parent of this process.
     */
    VMIO_ERROR_FORKED = 15,
    /*
     A system call failed that vmio cannot do without.
     */
    VMIO_ERROR_SYSTEM = 16,
    /*
     An error that has no number yet.
     */
    VMIO_ERROR_OTHER = 17,
    /*
     vmio has a bug, and stopped in the middle of the call. Do not use the handles of that call any more.
     */
    VMIO_ERROR_BUG = 18,
    /*
     The journal has no space for the stores since the last commit. Nothing is lost; make it larger, or commit more
     often.
     */
    VMIO_ERROR_JOURNAL_FULL = 19,
    /*
     The file is no journal, or the journal is damaged, unreadable or unwritable, or misses one of its files.
     */
    VMIO_ERROR_JOURNAL = 20,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum vmio_status vmio_status;
#else
typedef int32_t vmio_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 A budget of memory that any number of mappings share.
 */
struct vmio_cache;

/*
 A file beside the data, through which mappings change their files by commits alone.
 */
struct vmio_journal;

/*
 A file as a range of addresses, of which the cache keeps the useful part in memory.
 */
struct vmio_mapping;

/*
 A range that stays in memory.
 */
struct vmio_pinned;

/*
 A sync under way.
 */
struct vmio_sync_handle;

/*
 Options of a cache. Zero is the default of every field but `size` and `capacity_bytes`.
 */
struct vmio_cache_options {
    /*
     sizeof(struct vmio_cache_options).
     */
    size_t size;
    /*
     The memory that the cache may use; 6 MiB at least.
     */
    uint64_t capacity_bytes;
    /*
     The share of the cache that may be dirty before write-back begins though nothing is evicted; 0.75 by default.
     */
    double dirty_ratio;
    /*
     How page faults reach the cache: VMIO_ENGINE_*.
     */
    uint32_t engine;
    /*
     The memory that holds resident pages, for mappings that do not choose: VMIO_FRAMES_*.
     */
    uint32_t frames;
    /*
     Which pages are given up first, within a priority: VMIO_POLICY_*.
     */
    uint32_t policy;
    /*
     Whether the cache is locked in memory: VMIO_LOCK_*.
     */
    uint32_t lock_memory;
    /*
     Threads that evict and write in the background; one a core by default, 2 to 16.
     */
    uint32_t workers;
    /*
     Threads that handle the faults of VMIO_ENGINE_READER_THREAD; one a core by default, 2 at least.
     */
    uint32_t readers;
    /*
     Pages that each core may have under way, half of them for prefetches; 256 by default.
     */
    uint32_t pages_in_flight;
    /*
     Must be 0.
     */
    uint32_t reserved;
    /*
     If not 0, vmio changes the capacity, from this many bytes (6 MiB at least) up to `capacity_bytes`. The cache
     shrinks where memory runs short in the process's memory cgroups or in the system, and grows where nobody waits
     for memory. vmio_cache_stats has the present capacity.
     */
    uint64_t capacity_min_bytes;
};

/*
 The state of a cache, in pages of 4096 bytes, and its counters since it was made.
 */
struct vmio_stats {
    /*
     sizeof(struct vmio_stats).
     */
    size_t size;
    /*
     Pages that may be resident.
     */
    uint64_t capacity_pages;
    /*
     Pages that are resident.
     */
    uint64_t resident_pages;
    /*
     Resident pages that are newer than the device.
     */
    uint64_t dirty_pages;
    /*
     Pages of the budget for page tables and page words.
     */
    uint64_t table_pages;
    /*
     Pages that nobody uses.
     */
    uint64_t free_pages;
    /*
     Pages held by pins.
     */
    uint64_t pinned_pages;
    /*
     Loads that found their page absent.
     */
    uint64_t load_misses;
    /*
     Stores that found their page absent.
     */
    uint64_t store_misses;
    /*
     Minor faults: touches of pages that were inactive (in memory, but unmapped), or mapped at another address only.
     */
    __extension__ union {
        uint64_t minor_faults;
        /*
         The name of minor_faults up to ABI 0.5.
         */
        uint64_t soft_misses;
    };
    /*
     Stores that found their page resident but protected.
     */
    uint64_t write_protect_faults;
    /*
     Misses filled with zeros because the range was advised fresh.
     */
    uint64_t fresh_fills;
    /*
     Pages brought in beside a missed one.
     */
    uint64_t read_ahead_pages;
    /*
     Pages brought in by vmio_prefetch.
     */
    uint64_t fetched_pages;
    /*
     Times that a fault waited for another thread's work on the page.
     */
    uint64_t fault_waits;
    /*
     Requests to read.
     */
    uint64_t reads;
    /*
     Bytes read.
     */
    uint64_t read_bytes;
    /*
     Requests to write.
     */
    uint64_t writes;
    /*
     Bytes written.
     */
    uint64_t written_bytes;
    /*
     Pages evicted without a write.
     */
    uint64_t evicted_clean;
    /*
     Pages evicted right after a write.
     */
    uint64_t evicted_dirty;
    /*
     Times that a faulting thread had to evict by itself.
     */
    uint64_t direct_reclaims;
    /*
     Operations that make the kernel interrupt the other cores.
     */
    uint64_t shootdowns;
    /*
     Pages that could not be read.
     */
    uint64_t read_errors;
    /*
     Pages that could not be written, each attempt counted.
     */
    uint64_t write_errors;
    /*
     Resident pages by the priority of their 2 MiB: 0 to 31, and so on up to 224 to 255, which go first. Zeros with
     VMIO_ENGINE_MANAGED and VMIO_ENGINE_KERNEL.
     */
    uint64_t resident_by_priority[8];
};

/*
 Options of a journal. Zero is the default of every field but `size`.
 */
struct vmio_journal_options {
    /*
     sizeof(struct vmio_journal_options).
     */
    size_t size;
    /*
     The share of the journal in use, up to 1, from which on committed pages are brought into the files; 0.5 by default.
     */
    double checkpoint_at;
    /*
     The share of the journal, up to 0.9, that is kept free for commits; 0.25 by default. It should have space for
     all pages that become dirty between two commits.
     */
    double commit_reserve;
};

/*
 Options of a mapping. Zero is the default of every field but `size`.
 */
struct vmio_open_options {
    /*
     sizeof(struct vmio_open_options).
     */
    size_t size;
    /*
     The length of a file that is made (see `create`).
     */
    uint64_t len;
    /*
     Address space to reserve, so that the file can grow to this length in place: see vmio_set_len. Costs no memory;
     at least the length of the file, rounded up to 1 GiB.
     */
    uint64_t reserve_bytes;
    /*
     VMIO_READ_WRITE or VMIO_READ_ONLY.
     */
    uint32_t access;
    /*
     Whether the file is made: VMIO_CREATE_*.
     */
    uint32_t create;
    /*
     VMIO_PRIORITY_SET + the priority of the whole mapping, 0 (keep) to 255 (evict first).
     */
    uint32_t priority;
    /*
     The memory that holds the resident pages: VMIO_FRAMES_*.
     */
    uint32_t frames;
    /*
     How much is read at a miss, and kept or given up together: 4096 (the default), 16384 or 65536 bytes.
     */
    uint32_t unit_bytes;
    /*
     The result of a load of a page that cannot be read: VMIO_ON_READ_ERROR_*.
     */
    uint32_t on_read_error;
    /*
     The pattern of VMIO_ON_READ_ERROR_POISON.
     */
    uint8_t poison[8];
    /*
     Lets the file change by vmio_commit alone: the close of the last handle forgets stores that no commit has. Not
     with VMIO_ENGINE_MANAGED, VMIO_ENGINE_KERNEL, VMIO_FRAMES_MIXED and VMIO_FRAMES_STREAM.
     */
    const struct vmio_journal *journal;
    /*
     Memory of the cache that the mapping keeps once it has it. No pages of it go for other mappings, as long as
     those have pages above their own floors. VMIO_ERROR_CACHE_FULL if the floors of all would leave too little of
     the cache. Not with VMIO_ENGINE_MANAGED and VMIO_ENGINE_KERNEL.
     */
    uint64_t floor_bytes;
    /*
     Memory of the cache that the mapping may have, 1 MiB at least and no less than its floor; by default all of it. A
     miss at the ceiling evicts from the mapping itself. Not with VMIO_ENGINE_MANAGED and
     VMIO_ENGINE_KERNEL.
     */
    uint64_t ceiling_bytes;
};

/*
 A range of bytes of a mapping.
 */
struct vmio_range {
    /*
     Where it begins.
     */
    uint64_t offset;
    /*
     Its length; VMIO_TO_END for all that follows.
     */
    uint64_t len;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Makes a cache and starts its threads. `options` may not be NULL, since the capacity has no default.
 */
vmio_status vmio_cache_new(const struct vmio_cache_options *options, struct vmio_cache **cache);

/*
 Gives the handle back. The cache itself goes with the last mapping that uses it. NULL does nothing.
 */
void vmio_cache_free(struct vmio_cache *cache);

/*
 Changes the memory that a cache may use, in bytes, without stopping anybody. A larger capacity counts at once; for a
 smaller one the call evicts, and returns when that capacity is met. VMIO_ERROR_INVALID for less than 6 MiB.
 VMIO_ERROR_CACHE_FULL if pins hold more than three quarters of the new capacity, or pages cannot be written; the
 capacity then stays as it was.
 */
vmio_status vmio_cache_resize(const struct vmio_cache *cache,
                              uint64_t capacity_bytes);

/*
 Returns the engine of a cache: for VMIO_ENGINE_AUTO the one that it stands for here. VMIO_ENGINE_AUTO for NULL.
 */
uint32_t vmio_cache_engine(const struct vmio_cache *cache);

/*
 Fills `stats`, whose `size` must be set. The counts are of different instants, and zero in a forked child.
 */
vmio_status vmio_cache_stats(const struct vmio_cache *cache, struct vmio_stats *stats);

/*
 The binary interface of the library that the program runs with: the major version times 65536 plus the minor one.
 */
uint32_t vmio_abi_version(void);

/*
 The version of the library that the program runs with, such as "0.1.0".
 */
const char *vmio_version(void);

/*
 A status in a few words; also of numbers that are none.
 */
const char *vmio_strerror(int32_t status);

/*
 Copies the message of the last failed call of this thread, as a string of at most `bytes` bytes with its NUL. The
 message names the path or value that was wrong. Returns the length of the whole message without the NUL, 0 if no
 call has failed. Call it with NULL and 0 to learn how long the message is. A call that succeeds does not clear the
 message.
 */
size_t vmio_last_error(char *buffer,
                       size_t bytes);

/*
 The errno of the system call behind the last failed call of this thread, such as ENOENT; 0 if there was none.
 */
int32_t vmio_last_errno(void);

/*
 Makes a journal of `len` bytes, 384 KiB at least, in a new file or over an existing one; `options` may be NULL.
 */
vmio_status vmio_journal_create(const char *path,
                                uint64_t len,
                                const struct vmio_journal_options *options,
                                struct vmio_journal **journal);

/*
 Opens a journal, and brings its files to the state of the last acknowledged commit before it returns; `options` may be
 NULL. Open the journal before its files, which must be where they were.
 */
vmio_status vmio_journal_open(const char *path,
                              const struct vmio_journal_options *options,
                              struct vmio_journal **journal);

/*
 Gives the handle back. The journal itself closes with the last mapping that uses it. NULL does nothing.
 */
void vmio_journal_close(struct vmio_journal *journal);

/*
 Maps a file or block device; `options` may be NULL. Opening a file again that this process has mapped through the
 same cache gives another handle to the same addresses. Its options are then those of the first.
 */
vmio_status vmio_open(const struct vmio_cache *cache,
                      const char *path,
                      const struct vmio_open_options *options,
                      struct vmio_mapping **mapping);

/*
 Syncs and gives the handle back; with the last handle and pin, the addresses too. A mapping with a journal is not
 committed. The handle is gone whatever the call returns: sync first, if you can handle an error. NULL does
 nothing.
 */
vmio_status vmio_close(struct vmio_mapping *mapping);

/*
 Returns the address of the first byte, for loads and, unless the mapping is read-only, stores; it is valid until the last handle is
 closed. NULL for NULL.
 */
void *vmio_pointer(const struct vmio_mapping *mapping);

/*
 Returns the length in bytes; 0 for NULL.
 */
uint64_t vmio_len(const struct vmio_mapping *mapping);

/*
 Changes the length of the file and of the mapping, within `reserve_bytes`; new bytes are zeros. Bytes that are cut off
 must not be in use.
 */
vmio_status vmio_set_len(const struct vmio_mapping *mapping,
                         uint64_t len);

/*
 Returns the first error since the last such call of a page that could not be read, whether or not poison has
 replaced it. VMIO_OK if there was none.
 */
vmio_status vmio_take_read_error(const struct vmio_mapping *mapping);

/*
 Makes a range resident and keeps it so until vmio_unpin. System calls may get pointers into it, and may write there
 as well if `access` is VMIO_READ_WRITE (it stays dirty until then). Pins may hold three quarters of the cache.
 */
vmio_status vmio_pin(const struct vmio_mapping *mapping,
                     uint64_t offset,
                     uint64_t len,
                     uint32_t access,
                     struct vmio_pinned **pinned);

/*
 Unpins the range, and closes the mapping if all its handles are closed. NULL does nothing.
 */
void vmio_unpin(struct vmio_pinned *pinned);

/*
 Tells the cache how a range will be used: VMIO_ADVICE_*, with a value for those that take one, else 0. Priorities,
 read-ahead and reuse are kept per 2 MiB, and set for all 2 MiB that the range touches. Other advice applies to whole
 pages.
 */
vmio_status vmio_advise(const struct vmio_mapping *mapping,
                        uint64_t offset,
                        uint64_t len,
                        uint32_t advice,
                        uint32_t value);

/*
 Makes every page that a range touches resident, as loads would, but without the trap. Nothing holds them afterwards.
 */
vmio_status vmio_ensure(const struct vmio_mapping *mapping,
                        uint64_t offset,
                        uint64_t len);

/*
 Begins to read ranges that will be wanted soon, and returns at once: a guess, which takes little from others. A call
 brings in an eighth of the cache at most, of the ranges that come first. A page that cannot be read is an error of
 the access that needs it.
 */
vmio_status vmio_prefetch(const struct vmio_mapping *mapping,
                          const struct vmio_range *ranges,
                          size_t count);

/*
 Returns whether the page of a byte is in memory right now; false behind the end. The answer may change at once.
 */
bool vmio_is_resident(const struct vmio_mapping *mapping,
                      uint64_t offset);

/*
 Finds out which of the pages of 4096 bytes that a range touches are in memory. It sets `pages[n]` to 1 or 0 for
 each, as far as its `count` elements go, and `*resident` to the number of all resident ones. Either may be NULL.
 */
vmio_status vmio_residency(const struct vmio_mapping *mapping,
                           uint64_t offset,
                           uint64_t len,
                           uint8_t *pages,
                           size_t count,
                           uint64_t *resident);

/*
 Copies bytes out of the mapping. A page that cannot be read is an error, not a signal.
 */
vmio_status vmio_read_at(const struct vmio_mapping *mapping, uint64_t offset, void *buffer, size_t bytes);

/*
 Copies bytes into the mapping, as by stores.
 */
vmio_status vmio_write_at(const struct vmio_mapping *mapping,
                          uint64_t offset,
                          const void *data,
                          size_t bytes);

/*
 Makes every store durable that was made before the call. Threads that go on storing are not held up. Pages that
 cannot be written stay dirty, and the next sync tries them again. Of a mapping with a journal this is vmio_commit.
 */
vmio_status vmio_sync(const struct vmio_mapping *mapping);

/*
 As vmio_sync, for the pages that a range touches.
 */
vmio_status vmio_flush(const struct vmio_mapping *mapping, uint64_t offset, uint64_t len);

/*
 Commits the stores to all mappings of the journal that this mapping was opened with, and returns when they are
 durable. After a crash the files are as at the last commit that returned VMIO_OK, or at one that was under way. A
 commit is a point in time between the call and its return. After an error nothing is lost: the stores become part of
 the next commit.
 */
vmio_status vmio_commit(const struct vmio_mapping *mapping);

/*
 Starts a sync in the background, of the stores made before the call. vmio_sync_wait or vmio_sync_detach gives the
 handle back.
 */
vmio_status vmio_sync_begin(const struct vmio_mapping *mapping,
                            struct vmio_sync_handle **sync);

/*
 Returns whether a sync has ended; true for NULL.
 */
bool vmio_sync_is_finished(const struct vmio_sync_handle *sync);

/*
 Waits for the end of a sync, returns its status, and gives the handle back. NULL does nothing.
 */
vmio_status vmio_sync_wait(struct vmio_sync_handle *sync);

/*
 Gives the handle back and lets the sync go on; only the next sync returns its failure. NULL does nothing.
 */
void vmio_sync_detach(struct vmio_sync_handle *sync);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* VMIO_H */
