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
	__u32 flags; /* none yet: 0 */
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

/* Of pages of which nothing was said. */
#define VMIO_PRIORITY_DEFAULT 128

/* Once for a descriptor, else EBUSY; ENOMEM if it is more than the module may take. */
#define VMIO_RESERVE _IOW(0xbe, 1, struct vmio_reserve)
/*
 * Returns a descriptor for mmap(MAP_SHARED), msync and fsync. A file or device
 * that is attached already, by whoever it may be, is shared: the memory is what
 * was first reserved for it.
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
 * that much was written and evicted, EIO if it cannot be; more: ENOMEM if there is
 * none. A failure may leave any size between.
 */
#define VMIO_RESIZE _IOW(0xbe, 6, struct vmio_reserve)
/*
 * How many pages after a missed one are read with it if it continues a sequence:
 * 0, which it is at first, to 31.
 */
#define VMIO_READ_AHEAD _IOW(0xbe, 5, __u32)

#endif
