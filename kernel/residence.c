// SPDX-License-Identifier: GPL-2.0
/* Resident pages: counting, listing, evicting and discarding them. */

#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "module.h"
#include "uapi/vmio.h"

/* Attempts to write and evict pages that stay dirty. */
#define DIRTY_VISITS 3

static pgoff_t next_page(struct attachment *attachment, bool dirty, pgoff_t index, pgoff_t last)
{
	pgoff_t next = ULONG_MAX;
	unsigned int core;

	for (core = 0; core < attachment->pool->core_count; core++) {
		struct shard *shard = &attachment->shards[core];
		unsigned long found = index;

		if (xa_find(dirty ? &shard->dirty : &shard->pages, &found, last, XA_PRESENT))
			next = min(next, found);
	}
	return next;
}

/* The first page in memory from an index on; ULONG_MAX if there is none. */
pgoff_t next_resident(struct attachment *attachment, pgoff_t index, pgoff_t last)
{
	return next_page(attachment, false, index, last);
}

/* The first dirty page, likewise. */
pgoff_t next_dirty(struct attachment *attachment, pgoff_t index, pgoff_t last)
{
	return next_page(attachment, true, index, last);
}

/* Removes the pages of a span whose bits are set from a tree, by one walk. */
void erase_of_span(struct xarray *tree, pgoff_t start, const unsigned long *pages)
{
	XA_STATE(xas, tree, start + find_first_bit(pages, SPAN_PAGES));
	pgoff_t last = start + find_last_bit(pages, SPAN_PAGES);
	void *entry;

	if (bitmap_empty(pages, SPAN_PAGES))
		return;
	xas_lock(&xas);
	xas_for_each(&xas, entry, last) {
		if (test_bit(xas.xa_index - start, pages))
			xas_store(&xas, NULL);
	}
	xas_unlock(&xas);
}

long report_usage(const struct vmio_usage *usage, void __user *argument)
{
	return copy_to_user(argument, usage, sizeof(*usage)) ? -EFAULT : 0;
}

/* VMIO_USAGE of a mapping's descriptor. */
long attachment_usage(struct attachment *attachment, void __user *argument)
{
	struct vmio_usage usage = {
		.pages = resident_max(attachment),
		.resident = atomic_long_read(&attachment->resident),
		.dirty = atomic_long_read(&attachment->dirty),
		.pinned = atomic_long_read(&attachment->pinned),
		.first_dirty = next_dirty(attachment, 0, ULONG_MAX),
		.flush_failed = READ_ONCE(attachment->flush_error) != 0,
	};

	return report_usage(&usage, argument);
}

/* VMIO_RESIDENT. */
long list_resident(struct attachment *attachment, const void __user *argument)
{
	struct vmio_resident request;
	u64 __user *numbers;
	pgoff_t first, last;
	unsigned long listed = 0;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (!whole_pages(request.offset, request.length, &first, &last))
		return 0;
	numbers = u64_to_user_ptr(request.numbers);
	while (listed < request.room) {
		pgoff_t next = next_resident(attachment, first, last);

		if (next == ULONG_MAX)
			break;
		if (put_user(next, &numbers[listed]))
			return -EFAULT;
		listed++;
		if (next == last)
			break;
		first = next + 1;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return listed;
}

/*
 * VMIO_EVICT. Pages that cannot be written stay, with an error. Held pages stay, too,
 * since they are dirty until they are released. A thread that waits for the lock of a
 * page looks like a holder, and is gone at the next visit.
 */
long give_up(struct attachment *attachment, pgoff_t first, pgoff_t last)
{
	unsigned int visits;

	for (visits = 1;; visits++) {
		long error = READ_ONCE(attachment->writer) ? write_dirty(attachment, first, last) : 0;
		long held = evict_range(attachment, first, last, false);

		if (error || held < 0)
			return error ?: held;
		if (visits == DIRTY_VISITS || next_dirty(attachment, first, last) == ULONG_MAX)
			return held;
		schedule_timeout_killable(1);
		if (fatal_signal_pending(current))
			return -EINTR;
	}
}

/*
 * VMIO_DISCARD. A fault that has found its page fresh has it locked in memory by now,
 * and this waits for it; later faults read the page.
 */
long discard(struct attachment *attachment, pgoff_t first, pgoff_t last)
{
	fresh_forget(attachment, first, last);
	return evict_range(attachment, first, last, true);
}
