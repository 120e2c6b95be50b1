/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR Apache-2.0 */
/*
 * The interface of the kernel module. A program opens /dev/vmio, reserves memory
 * for that descriptor, attaches files or block devices to it, and maps the
 * descriptors that VMIO_ATTACH returns. docs/kernel.md describes the mappings.
 */
#ifndef VMIO_UAPI_H
#define VMIO_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* For /dev/vmio: the memory of all attachments to this descriptor. */
struct vmio_reserve {
	__u64 pages; /* of the machine's page size, at least 64 */
};

/* For /dev/vmio: the file or device to attach. */
struct vmio_attach {
	__s32 fd; /* opened with O_DIRECT, for reading or for both */
	__u32 flags; /* VMIO_ATTACH_VERIFY, or 0 */
	/* the most pages of it in memory; less than 64 counts as 64; 0: as many as were reserved */
	__u64 limit_pages;
};

/*
 * For a mapping's descriptor: the eviction priority of the pages that lie wholly in
 * a range of bytes.
 */
struct vmio_priority {
	__u64 offset;
	__u64 length;
	__u32 priority; /* 0: evict last, to 255: evict first */
	__u32 reserved; /* 0 */
};

/* For a mapping's descriptor: the pages that lie wholly in a range of bytes. */
struct vmio_byte_range {
	__u64 offset;
	__u64 length;
};

/* For /dev/vmio or a mapping's descriptor: the pool's or the attachment's pages. */
struct vmio_usage {
	__u64 pages; /* the most that it may have in memory */
	__u64 resident; /* in memory, or being read */
	__u64 dirty; /* of these, newer than the backing */
	__u64 pinned; /* held by pins, counted once for each pin */
	/* for a mapping's descriptor only: */
	__u64 first_dirty; /* the number of the first dirty page, if there is one */
	__u64 flush_failed; /* 1: a flush of the backing has failed, and all syncs will fail */
};

/* Counts of a pool and its attachments since it was reserved. */
struct vmio_counts {
	__u64 loads_missed; /* loads, and VMIO_INSPECT, whose page was not in memory and was read */
	__u64 stores_missed; /* the same for stores */
	__u64 fresh; /* of both, those that got zeros without a read */
	__u64 found; /* minor faults: the page was in memory, and not mapped */
	__u64 made_writable; /* pages made writable by a store, misses included */
	__u64 reads; /* requests that succeeded */
	__u64 pages_read; /* by these requests */
	__u64 pages_read_ahead; /* of these, pages that no fault had asked for */
	__u64 read_errors;
	__u64 spans_unmapped; /* each with one TLB shootdown */
	__u64 pages_evicted; /* discarded ones included */
	__u64 writes; /* requests that succeeded */
	__u64 pages_written; /* by these requests */
	__u64 write_errors; /* requests that failed */
};

/* For a mapping's descriptor: an array for the numbers of resident pages. */
struct vmio_resident {
	__u64 offset; /* of the range of bytes in which the pages lie wholly */
	__u64 length;
	__u64 numbers; /* points to an array of __u64 */
	__u64 room; /* its length */
};

/* For a mapping's descriptor: the addresses in the caller's memory to pin, in whole pages. */
struct vmio_pin {
	__u64 address;
	__u64 length;
	__u32 flags; /* VMIO_PIN_WRITE, or 0 */
	__u32 reserved; /* 0 */
};

/* Pins for stores by devices or system calls: the pages stay dirty while they are pinned. */
#define VMIO_PIN_WRITE 1

/* For a descriptor of VMIO_ATTACH with VMIO_ATTACH_VERIFY: a page to verify before it is mapped. */
struct vmio_inspect {
	__u64 offset; /* of the page, in bytes */
	__u64 contents; /* points to space for a page */
	/* returned: a number for this read of the page; 0: it was admitted, and is not copied */
	__u64 arrival;
};

/* For such a descriptor: the page passed, and may be mapped. */
struct vmio_admit {
	__u64 offset;
	__u64 arrival; /* as VMIO_INSPECT returned it */
};

/* For such a descriptor: a page that failed, or cannot be read. */
struct vmio_poison {
	__u64 offset;
	__u8 pattern[8]; /* fills the page */
};

/*
 * Pages that are read from the backing are not mapped before they were inspected
 * and admitted. A load or store of any other page is a SIGBUS, and a system call
 * gets EFAULT. Fresh pages are mapped at once.
 */
#define VMIO_ATTACH_VERIFY 1
/* The former name. */
#define VMIO_ATTACH_VETTED VMIO_ATTACH_VERIFY

/* The priority of pages without VMIO_PRIORITIZE. */
#define VMIO_PRIORITY_DEFAULT 128

/* The version that this header describes. The module's (VMIO_VERSION) includes all lower ones. */
#define VMIO_ABI 4

/* Once for a descriptor, else EBUSY; ENOMEM if it is more than the module may take. */
#define VMIO_RESERVE _IOW(0xbe, 1, struct vmio_reserve)
/*
 * Returns a descriptor for mmap(MAP_SHARED), msync and fsync. A file or device
 * that any process has attached already is shared, with the memory that it was
 * attached to first. EBUSY: it is attached with VMIO_ATTACH_VERIFY and this request
 * is without, or the other way round, or it is attached so to another descriptor
 * of /dev/vmio: one owner verifies the pages that all processes see.
 */
#define VMIO_ATTACH _IOW(0xbe, 2, struct vmio_attach)
#define VMIO_PRIORITIZE _IOW(0xbe, 3, struct vmio_priority)
/*
 * Marks pages whose contents in the backing do not matter. Pages in memory stay as
 * they are; others are zeros, without a read, until they have been stored to and
 * written. For a descriptor for writing.
 */
#define VMIO_FRESH _IOW(0xbe, 4, struct vmio_byte_range)
/*
 * For /dev/vmio: changes the size of the memory, which is at least 64 pages. A
 * smaller size waits until enough pages were written and evicted. EIO: they cannot
 * be written; EBUSY: more than half of them are pinned, or others have held all of
 * them for 10 seconds. ENOMEM: there is no memory for a larger size. A failure may
 * leave any size in between.
 */
#define VMIO_RESIZE _IOW(0xbe, 6, struct vmio_reserve)
/*
 * The number of pages that are read ahead after a miss that continues a sequence:
 * 0 (the default) to 31.
 */
#define VMIO_READ_AHEAD _IOW(0xbe, 5, __u32)
/* For /dev/vmio. */
#define VMIO_VERSION _IOR(0xbe, 7, __u32)
#define VMIO_USAGE _IOR(0xbe, 8, struct vmio_usage)
/* For /dev/vmio. */
#define VMIO_COUNTS _IOR(0xbe, 16, struct vmio_counts)
/*
 * Fills an array with the numbers of pages that are in memory, in rising order, and
 * returns their count. If the array is full there may be more pages behind the last.
 */
#define VMIO_RESIDENT _IOW(0xbe, 9, struct vmio_resident)
/*
 * Writes the dirty pages of a range and evicts those that nobody holds. Waits for
 * pages that are being read. Returns the number of pages that stay because they are
 * held, by a pin for example; so does VMIO_DISCARD.
 */
#define VMIO_EVICT _IOW(0xbe, 10, struct vmio_byte_range)
/*
 * Evicts pages without writing them: stores to them are lost, and they are fresh no
 * longer. Waits for pages that are being written. For a descriptor for writing.
 */
#define VMIO_DISCARD _IOW(0xbe, 11, struct vmio_byte_range)
/*
 * Reads pages into memory, and returns a descriptor that keeps them there until it
 * is closed. ENOSPC: pins would hold more than half of the pool, or of the
 * attachment's limit; EFAULT: a page cannot be read.
 */
#define VMIO_PIN _IOW(0xbe, 12, struct vmio_pin)
/*
 * Reads a page into memory, and copies it to the caller. A poisoned page is read
 * again. ENXIO: it lies behind the end; ENOMEM: there is no memory; else the error
 * of the read.
 */
#define VMIO_INSPECT _IOWR(0xbe, 13, struct vmio_inspect)
/* Lets the page be mapped. EAGAIN: it was read again since it was inspected. */
#define VMIO_ADMIT _IOW(0xbe, 14, struct vmio_admit)
/*
 * Fills a page with a pattern, unless it was admitted or is fresh. It may be loaded
 * from but not stored to, until it is evicted.
 */
#define VMIO_POISON _IOW(0xbe, 15, struct vmio_poison)

#endif
