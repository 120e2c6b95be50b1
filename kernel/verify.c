// SPDX-License-Identifier: GPL-2.0
/*
 * Verify before map: user space verifies each page that was read before it is mapped.
 * Each read of a page (its arrival) has a number, by which VMIO_ADMIT names the bytes
 * that were inspected: the page may have been evicted and read again since. A
 * poisoned page may be loaded from, but not stored to.
 */

#include <linux/highmem.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "module.h"
#include "uapi/vmio.h"

/*
 * Admits a page that was marked fresh after it was read, by read-ahead perhaps: it
 * becomes zeros, which need no verification. The folio is locked.
 */
void admit_if_fresh(struct frame *frame)
{
	if (!frame->arrival || !fresh_is(frame->attachment, frame->folio->index))
		return;
	folio_zero_segment(frame->folio, 0, PAGE_SIZE);
	frame->arrival = 0;
}

/* Copies a request, which begins with the offset of a page, and finds the page's number. */
static int take_request(struct attachment *attachment, const void __user *argument, void *request,
			size_t size, pgoff_t *index)
{
	u64 offset;

	static_assert(!offsetof(struct vmio_inspect, offset));
	static_assert(!offsetof(struct vmio_admit, offset));
	static_assert(!offsetof(struct vmio_poison, offset));
	if (copy_from_user(request, argument, size))
		return -EFAULT;
	offset = *(u64 *)request;
	if (!attachment->verify || offset & ~PAGE_MASK)
		return -EINVAL;
	if (offset >> PAGE_SHIFT >= attachment_end(attachment))
		return -ENXIO;
	*index = offset >> PAGE_SHIFT;
	return 0;
}

/* The frame of a page in memory, with its folio locked. EAGAIN: it is not in memory any more. */
static struct frame *lock_resident(struct attachment *attachment, pgoff_t index)
{
	struct shard *shard = &attachment->shards[core_of(attachment, index)];
	struct frame *frame = xa_load(&shard->pages, index);
	int error = frame ? frame_lock(frame, attachment, index, UNTIL_KILLED) : -EAGAIN;

	return error ? ERR_PTR(error) : frame;
}

/* A free frame for a page that is not in memory. EAGAIN: there was none, and this has waited. */
static struct frame *find_frame(struct attachment *attachment)
{
	struct frame *frame = frame_find(attachment);
	int error;

	if (frame)
		return frame;
	if (frames_are_stuck(attachment, PATIENCE_OF_CALLS))
		return ERR_PTR(-ENOMEM);
	error = wait_for_frame(attachment->pool);
	return ERR_PTR(error ?: -EAGAIN);
}

/* Reads a page that is not in memory, and locks its folio. EAGAIN, EBUSY: look again. */
static struct frame *lock_missing(struct attachment *attachment, pgoff_t index)
{
	struct frame *frame = find_frame(attachment);
	struct load load;
	int error;

	if (IS_ERR(frame))
		return frame;
	error = load_begin(&load, attachment, frame, index);
	if (!error)
		error = load_end(&load, false);
	return error ? ERR_PTR(error) : frame;
}

static bool looks_again(const struct frame *frame)
{
	return frame == ERR_PTR(-EAGAIN) || frame == ERR_PTR(-EBUSY);
}

/* A page with its folio locked; a function brings it into memory if necessary. */
static struct frame *lock_page_by(struct attachment *attachment, pgoff_t index,
				  struct frame *(*lock_absent)(struct attachment *, pgoff_t))
{
	for (;;) {
		struct frame *frame = lock_resident(attachment, index);

		if (frame == ERR_PTR(-EAGAIN))
			frame = lock_absent(attachment, index);
		if (!looks_again(frame))
			return frame;
		if (fatal_signal_pending(current))
			return ERR_PTR(-EINTR);
		cond_resched();
	}
}

/* A page with its folio locked, read again while it is poisoned. */
static struct frame *lock_unpoisoned(struct attachment *attachment, pgoff_t index)
{
	for (;;) {
		struct frame *frame = lock_page_by(attachment, index, lock_missing);
		long error;

		if (IS_ERR(frame))
			return frame;
		if (!frame->poisoned) {
			admit_if_fresh(frame);
			return frame;
		}
		folio_unlock(frame->folio);
		error = evict_range(attachment, index, index, false);
		if (error < 0)
			return ERR_PTR(error);
	}
}

static int copy_page_to_user(struct folio *folio, void __user *contents)
{
	void *from = kmap_local_folio(folio, 0);
	int error = copy_to_user(contents, from, PAGE_SIZE) ? -EFAULT : 0;

	kunmap_local(from);
	return error;
}

/* VMIO_INSPECT. */
long inspect(struct attachment *attachment, void __user *argument)
{
	struct vmio_inspect request;
	struct frame *frame;
	struct folio *folio;
	pgoff_t index;
	int error;

	error = take_request(attachment, argument, &request, sizeof(request), &index);
	if (error)
		return error;
	frame = lock_unpoisoned(attachment, index);
	if (IS_ERR(frame))
		return PTR_ERR(frame);
	request.arrival = frame->arrival;
	folio = frame->folio;
	/* It is not mapped, so nobody changes it. If it is evicted, the frame gets another folio. */
	if (request.arrival)
		folio_get(folio);
	folio_unlock(folio);
	if (request.arrival) {
		error = copy_page_to_user(folio, u64_to_user_ptr(request.contents));
		folio_put(folio);
	}
	if (!error && copy_to_user(argument, &request, sizeof(request)))
		error = -EFAULT;
	return error;
}

/* VMIO_ADMIT. */
long admit(struct attachment *attachment, const void __user *argument)
{
	struct vmio_admit request;
	struct frame *frame;
	pgoff_t index;
	int error;

	error = take_request(attachment, argument, &request, sizeof(request), &index);
	if (error)
		return error;
	frame = lock_resident(attachment, index);
	if (IS_ERR(frame))
		return PTR_ERR(frame);
	if (request.arrival && frame->arrival == request.arrival)
		frame->arrival = 0;
	else
		error = -EAGAIN;
	folio_unlock(frame->folio);
	return error;
}

/* A frame for a page that is not in memory, without reading it. EAGAIN, EBUSY: look again. */
static struct frame *lock_unread(struct attachment *attachment, pgoff_t index)
{
	struct frame *frame = find_frame(attachment);
	int error;

	if (IS_ERR(frame))
		return frame;
	error = frame_assign(frame, attachment, index);
	if (!error) {
		folio_mark_uptodate(frame->folio);
		frame_enqueue(frame);
		return frame;
	}
	frame_free(attachment->pool, frame);
	return ERR_PTR(error);
}

static void fill(struct folio *folio, u64 pattern)
{
	void *to = kmap_local_folio(folio, 0);

	memset64(to, pattern, PAGE_SIZE / sizeof(pattern));
	kunmap_local(to);
}

/* VMIO_POISON. */
long poison(struct attachment *attachment, const void __user *argument)
{
	struct vmio_poison request;
	struct frame *frame;
	pgoff_t index;
	u64 pattern;
	int error;

	error = take_request(attachment, argument, &request, sizeof(request), &index);
	if (error)
		return error;
	frame = lock_page_by(attachment, index, lock_unread);
	if (IS_ERR(frame))
		return PTR_ERR(frame);
	admit_if_fresh(frame);
	if (frame->arrival) {
		memcpy(&pattern, request.pattern, sizeof(pattern));
		fill(frame->folio, pattern);
		frame->poisoned = true;
		frame->arrival = 0;
	}
	folio_unlock(frame->folio);
	return 0;
}
