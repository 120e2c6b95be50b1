// SPDX-License-Identifier: GPL-2.0
/* The ioctls of a mapping's descriptor. */

#include <linux/module.h>
#include <linux/uaccess.h>

#include "module.h"
#include "uapi/vmio.h"

/* The pages that lie wholly in a range of bytes. False if there are none. */
bool whole_pages(u64 offset, u64 length, pgoff_t *first, pgoff_t *last)
{
	u64 end, from, to;

	if (offset > LLONG_MAX)
		return false;
	if (check_add_overflow(offset, length, &end) || end > LLONG_MAX)
		end = LLONG_MAX;
	from = DIV_ROUND_UP_ULL(offset, PAGE_SIZE);
	/* With 32-bit page numbers, not every offset has a page. */
	to = min_t(u64, end >> PAGE_SHIFT, ULONG_MAX);
	if (from >= to)
		return false;
	*first = from;
	*last = to - 1;
	return true;
}

/* The priority of a page, as it was last set (from Kreon). */
u8 priority_of(struct attachment *attachment, pgoff_t index)
{
	void *entry = mtree_load(&attachment->priorities, index);

	return entry ? xa_to_value(entry) : VMIO_PRIORITY_DEFAULT;
}

static int prioritize(struct attachment *attachment, const struct vmio_priority *request)
{
	bool usual = request->priority == VMIO_PRIORITY_DEFAULT;
	void *entry = usual ? NULL : xa_mk_value(request->priority);
	pgoff_t first, last;
	unsigned int core;
	int error;

	if (request->reserved || request->priority >= PRIORITIES)
		return -EINVAL;
	if (!whole_pages(request->offset, request->length, &first, &last))
		return 0;
	error = mtree_store_range(&attachment->priorities, first, last, entry, GFP_KERNEL_ACCOUNT);
	if (error)
		return error;
	/* Pages read from here on get the priority by themselves. This changes pages in memory. */
	for (core = 0; core < attachment->pool->core_count; core++) {
		struct frame *frame;
		unsigned long index;

		xa_for_each_range(&attachment->shards[core].pages, index, frame, first, last) {
			error = frame_lock(frame, attachment, index, UNTIL_KILLED);
			if (error == -EINTR)
				return error;
			if (error)
				continue;
			frame_prioritize(frame, priority_of(attachment, index));
			folio_unlock(frame->folio);
			cond_resched();
		}
	}
	return 0;
}

long attachment_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct attachment *attachment = file->private_data;
	struct vmio_priority priority;
	struct vmio_byte_range range;
	u32 pages;
	pgoff_t first, last, end;

	switch (command) {
	case VMIO_USAGE:
		return attachment_usage(attachment, (void __user *)argument);
	case VMIO_RESIDENT:
		return list_resident(attachment, (const void __user *)argument);
	case VMIO_PIN:
		return pin_pages(file, (const void __user *)argument);
	case VMIO_INSPECT:
		return inspect(attachment, (void __user *)argument);
	case VMIO_ADMIT:
		return admit(attachment, (const void __user *)argument);
	case VMIO_POISON:
		return poison(attachment, (const void __user *)argument);
	case VMIO_EVICT:
	case VMIO_DISCARD:
		if (command == VMIO_DISCARD && !(file->f_mode & FMODE_WRITE))
			return -EBADF;
		if (copy_from_user(&range, (const void __user *)argument, sizeof(range)))
			return -EFAULT;
		/* Drops pages behind the backing's end, wherever the range lies. */
		attachment_end(attachment);
		if (!whole_pages(range.offset, range.length, &first, &last))
			return 0;
		if (command == VMIO_DISCARD)
			return discard(attachment, first, last);
		return give_up(attachment, first, last);
	case VMIO_PRIORITIZE:
		if (copy_from_user(&priority, (const void __user *)argument, sizeof(priority)))
			return -EFAULT;
		return prioritize(attachment, &priority);
	case VMIO_FRESH:
		if (!(file->f_mode & FMODE_WRITE))
			return -EBADF;
		if (copy_from_user(&range, (const void __user *)argument, sizeof(range)))
			return -EFAULT;
		if (!whole_pages(range.offset, range.length, &first, &last))
			return 0;
		end = attachment_end(attachment);
		return first < end ? fresh_mark(attachment, first, min(last, end - 1)) : 0;
	case VMIO_READ_AHEAD:
		if (copy_from_user(&pages, (const void __user *)argument, sizeof(pages)))
			return -EFAULT;
		if (pages >= READ_PAGES_MAX)
			return -EINVAL;
		WRITE_ONCE(attachment->read_ahead, pages);
		return 0;
	default:
		return -ENOTTY;
	}
}
