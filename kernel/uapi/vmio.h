/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR Apache-2.0 */
/*
 * What a program asks of the kernel module: open /dev/vmio, reserve memory for
 * that descriptor, attach files or block devices to it, and map the descriptors
 * that attaching returns. docs/kernel.md says what mappings do.
 */
#ifndef VMIO_UAPI_H
#define VMIO_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Of /dev/vmio: the memory that what is attached to this descriptor shares. */
struct vmio_reserve {
	__u64 pages; /* of the machine's size, at least 64 */
};

/* Of /dev/vmio: what to map. */
struct vmio_attach {
	__s32 fd; /* opened with O_DIRECT, for reading or for both */
	__u32 flags; /* VMIO_ATTACH_VETTED, or 0 */
	/* of it in memory at most (64 if it is less), 0 for no limit but the reserve */
	__u64 limit_pages;
};

/*
 * Of a mapping's descriptor: how dear pages are. Those that lie in the range of
 * bytes as a whole.
 */
struct vmio_priority {
	__u64 offset;
	__u64 length;
	__u32 priority; /* 0: evict last, to 255: evict first */
	__u32 reserved; /* 0 */
};

/* Of a mapping's descriptor: some pages, those that lie in the range of bytes as a whole. */
struct vmio_byte_range {
	__u64 offset;
	__u64 length;
};

/* Of /dev/vmio or of a mapping's descriptor: what the pool or the attachment has, in pages. */
struct vmio_usage {
	__u64 pages; /* that it may have in memory */
	__u64 resident; /* in memory, or on their way in */
	__u64 dirty; /* of these, newer than the backing */
	__u64 pinned; /* held by pins, each time counted */
	/* of a mapping's descriptor only: */
	__u64 first_dirty; /* the number of the first dirty page, if there is one */
	__u64 flush_failed; /* 1: a flush of the backing has failed, and so will all syncs */
};

/* What was done for a pool, by all that is attached to it, since it was reserved. */
struct vmio_counts {
	__u64 loads_missed; /* loads, and VMIO_INSPECT, that found no page in memory, and got it */
	__u64 stores_missed; /* the same of stores */
	__u64 fresh; /* of both, those that got zeros without a read */
	__u64 found; /* faults that found their page in memory, out of sight */
	__u64 made_writable; /* pages, by a store, also by one that has missed */
	__u64 reads; /* requests that succeeded */
	__u64 pages_read; /* by these */
	__u64 pages_read_ahead; /* of these, those that nobody had touched */
	__u64 read_errors;
	__u64 spans_unmapped; /* each with a TLB shootdown */
	__u64 pages_evicted; /* those that were discarded, too */
	__u64 writes; /* requests that succeeded */
	__u64 pages_written; /* by these */
	__u64 write_errors; /* requests that have failed */
};

/* Of a mapping's descriptor: where the numbers of resident pages go. */
struct vmio_resident {
	__u64 offset; /* of those that lie in this range of bytes as a whole */
	__u64 length;
	__u64 numbers; /* points to __u64 */
	__u64 room; /* so many of them */
};

/* Of a mapping's descriptor: where it is mapped in the caller's memory, whole pages. */
struct vmio_pin {
	__u64 address;
	__u64 length;
	__u32 flags; /* VMIO_PIN_WRITE, or 0 */
	__u32 reserved; /* 0 */
};

/* As stores: the pages are dirty as long as they are pinned, for devices and system calls may store to them. */
#define VMIO_PIN_WRITE 1

/* Of a vetted mapping's descriptor: a page that somebody wants to look at before anybody sees it. */
struct vmio_inspect {
	__u64 offset; /* of the page, in bytes */
	__u64 contents; /* points to room for a page */
	/* returned: a number that no other arrival of a page has; 0: it was admitted, and is not copied */
	__u64 arrival;
};

/* Of a vetted mapping's descriptor: what was looked at may be seen. */
struct vmio_admit {
	__u64 offset;
	__u64 arrival; /* which VMIO_INSPECT has returned */
};

/* Of a vetted mapping's descriptor: a page that is not to be had. */
struct vmio_poison {
	__u64 offset;
	__u8 pattern[8]; /* that fills it */
};

/*
 * Pages that come from the backing are not to be seen before somebody has looked at
 * them and admitted them: a load or store of others is a SIGBUS, and a system call's
 * an EFAULT. Pages that are fresh need not be.
 */
#define VMIO_ATTACH_VETTED 1

/* Of pages of which nothing was said. */
#define VMIO_PRIORITY_DEFAULT 128

/* What this header describes. The module says by VMIO_VERSION what it does: no less than any lower number. */
#define VMIO_ABI 4

/* Once for a descriptor, else EBUSY; ENOMEM if it is more than the module may take. */
#define VMIO_RESERVE _IOW(0xbe, 1, struct vmio_reserve)
/*
 * Returns a descriptor for mmap(MAP_SHARED), msync and fsync. A file or device
 * that is attached already, by whoever it may be, is shared: the memory is what
 * was first reserved for it. EBUSY: it is vetted, and this would not be, or the
 * other way round, or it is vetted for another descriptor of /dev/vmio: who vets it
 * answers for what all see.
 */
#define VMIO_ATTACH _IOW(0xbe, 2, struct vmio_attach)
#define VMIO_PRIORITIZE _IOW(0xbe, 3, struct vmio_priority)
/*
 * What the backing has in these pages does not matter. Those in memory stay as
 * they are; others are zeros, without a read, until they have been stored to and
 * written. Of a descriptor for writing.
 */
#define VMIO_FRESH _IOW(0xbe, 4, struct vmio_byte_range)
/*
 * Of /dev/vmio: from now on so much memory, at least 64 pages. Less: waits until
 * that much was written and evicted, EIO if it cannot be, EBUSY if more than half
 * of it is pinned, or all of it has been held by others for 10 seconds; more: ENOMEM if there is none. A failure may leave any size between.
 */
#define VMIO_RESIZE _IOW(0xbe, 6, struct vmio_reserve)
/*
 * How many pages after a missed one are read with it if it continues a sequence:
 * 0, which it is at first, to 31.
 */
#define VMIO_READ_AHEAD _IOW(0xbe, 5, __u32)
/* Of /dev/vmio. */
#define VMIO_VERSION _IOR(0xbe, 7, __u32)
#define VMIO_USAGE _IOR(0xbe, 8, struct vmio_usage)
/* Of /dev/vmio. */
#define VMIO_COUNTS _IOR(0xbe, 16, struct vmio_counts)
/*
 * Fills an array with the numbers of pages that are in memory, upwards, and returns
 * how many. If it is full there may be more behind the last.
 */
#define VMIO_RESIDENT _IOW(0xbe, 9, struct vmio_resident)
/*
 * Writes what is dirty of some pages, and takes those out of memory that nobody
 * holds. What is on its way in is waited for. Returns how many pages stay since
 * somebody holds them, a pin for one; so does VMIO_DISCARD.
 */
#define VMIO_EVICT _IOW(0xbe, 10, struct vmio_byte_range)
/*
 * The same without writing: stores to them are forgotten, and that they were fresh. What
 * is being written is waited for. Of a descriptor for writing.
 */
#define VMIO_DISCARD _IOW(0xbe, 11, struct vmio_byte_range)
/*
 * Has pages come into memory, and returns a descriptor that keeps them there until
 * it is closed. ENOSPC: pins would hold more than half of the pool, or of what the
 * attachment may have; EFAULT: one cannot be had.
 */
#define VMIO_PIN _IOW(0xbe, 12, struct vmio_pin)
/*
 * Has a page come into memory, and copies it. What is poisoned is read anew. ENXIO:
 * it lies behind the end; ENOMEM: no memory is to be had; else why it cannot be read.
 */
#define VMIO_INSPECT _IOWR(0xbe, 13, struct vmio_inspect)
/* Has all see the page. EAGAIN: it no longer is what was looked at. */
#define VMIO_ADMIT _IOW(0xbe, 14, struct vmio_admit)
/*
 * Has a page, unless it was admitted or is fresh, hold a pattern, which all may see
 * and nobody store to, until it is evicted.
 */
#define VMIO_POISON _IOW(0xbe, 15, struct vmio_poison)

#endif
