// SPDX-License-Identifier: GPL-2.0
/*
 * Pins: pages that stay in memory while a descriptor is open, which holds a reference
 * to each. A page with another reference is neither evicted nor counted as clean.
 */

#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "module.h"
#include "uapi/vmio.h"

/* Pages that are pinned by one call. */
#define BATCH_PAGES 512UL

struct pin {
	struct file *mapping; /* a reference to the attachment */
	unsigned long count; /* pages that it is charged for */
	unsigned long got; /* pages that are pinned so far */
	struct page *pages[];
};

static void uncharge(struct attachment *attachment, unsigned long count)
{
	atomic_long_sub(count, &attachment->pinned);
	atomic_long_sub(count, &attachment->pool->pinned);
}

/* Charges the pages before they are pinned, so that there is always memory for others. */
static int charge(struct attachment *attachment, unsigned long count)
{
	struct pool *pool = attachment->pool;
	long of_attachment, of_pool;

	if (count > pinned_max(READ_ONCE(pool->wanted)))
		return -ENOSPC;
	of_attachment = atomic_long_add_return(count, &attachment->pinned);
	of_pool = atomic_long_add_return(count, &pool->pinned);
	/* A thread that shrinks the pool sets wanted first, and checks pinned afterwards. */
	if (of_attachment <= pinned_max(resident_max(attachment)) &&
	    of_pool <= pinned_max(READ_ONCE(pool->wanted)))
		return 0;
	uncharge(attachment, count);
	return -ENOSPC;
}

static void unpin(struct pin *pin)
{
	unsigned long i;

	for (i = 0; i < pin->got; i++)
		put_page(pin->pages[i]);
	uncharge(pin->mapping->private_data, pin->count);
	fput(pin->mapping);
	kvfree(pin);
}

static int pin_release(struct inode *inode, struct file *file)
{
	unpin(file->private_data);
	return 0;
}

static const struct file_operations pin_operations = {
	.owner = THIS_MODULE,
	.release = pin_release,
};

/* Pins by the caller's page tables, so that pages are read as by any other fault. */
static int get_pages(struct pin *pin, unsigned long address, bool for_stores)
{
	const struct attachment *attachment = pin->mapping->private_data;

	while (pin->got < pin->count) {
		long more = get_user_pages_fast(address + pin->got * PAGE_SIZE,
						min(pin->count - pin->got, BATCH_PAGES),
						for_stores ? FOLL_WRITE : 0,
						pin->pages + pin->got);

		if (more <= 0)
			return more ?: -EFAULT;
		for (pin->got += more; more; more--) {
			struct folio *folio = page_folio(pin->pages[pin->got - more]);

			const struct frame *frame;

			if (READ_ONCE(folio->mapping) != attachment->inode->i_mapping)
				return -EINVAL;
			/* With our reference it is not poisoned. */
			frame = READ_ONCE(folio->private);
			if (!frame || READ_ONCE(frame->poisoned))
				return -EFAULT;
		}
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

/* VMIO_PIN: a new descriptor. */
long pin_pages(struct file *file, const void __user *argument)
{
	struct attachment *attachment = file->private_data;
	struct vmio_pin request;
	unsigned long count;
	struct pin *pin;
	int error;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.flags & ~VMIO_PIN_WRITE || request.reserved || !request.length ||
	    offset_in_page(request.address) || offset_in_page(request.length) ||
	    request.address > ULONG_MAX || request.length > ULONG_MAX - request.address)
		return -EINVAL;
	if (request.flags & VMIO_PIN_WRITE && !(file->f_mode & FMODE_WRITE))
		return -EBADF;
	count = request.length >> PAGE_SHIFT;
	error = charge(attachment, count);
	if (error)
		return error;
	pin = kvmalloc(struct_size(pin, pages, count), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!pin) {
		uncharge(attachment, count);
		return -ENOMEM;
	}
	pin->mapping = get_file(file);
	pin->count = count;
	pin->got = 0;
	error = get_pages(pin, request.address, request.flags & VMIO_PIN_WRITE);
	if (!error)
		error = anon_inode_getfd("[vmio-pin]", &pin_operations, pin, O_RDONLY | O_CLOEXEC);
	if (error < 0)
		unpin(pin);
	return error;
}
