// SPDX-License-Identifier: GPL-2.0
/*
 * Fresh pages, whose contents in the backing do not matter: kmmap's bitmap (Kreon
 * §3.3). A miss of one gets zeros, without a read, until it has been written back.
 */

#include <linux/bitmap.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "module.h"

/* The bitmap of a span; it stays until the attachment goes. */
struct fresh_span {
	DECLARE_BITMAP(pages, SPAN_PAGES);
};

static struct fresh_span *find_or_add(struct attachment *attachment, unsigned long number)
{
	struct fresh_span *span = xa_load(&attachment->fresh, number), *other;

	if (span)
		return span;
	/* A sparse file may be far longer than memory: one span for each page of the pool is enough. */
	if (atomic_long_inc_return(&attachment->fresh_spans) >
	    READ_ONCE(attachment->pool->frame_count)) {
		atomic_long_dec(&attachment->fresh_spans);
		return ERR_PTR(-ENOSPC);
	}
	span = kzalloc(sizeof(*span), GFP_KERNEL_ACCOUNT);
	if (!span) {
		atomic_long_dec(&attachment->fresh_spans);
		return ERR_PTR(-ENOMEM);
	}
	other = xa_cmpxchg(&attachment->fresh, number, NULL, span, GFP_KERNEL_ACCOUNT);
	if (!other)
		return span;
	kfree(span);
	atomic_long_dec(&attachment->fresh_spans);
	return xa_is_err(other) ? ERR_PTR(xa_err(other)) : other;
}

/* Marks pages as fresh. Pages in memory keep their contents until they are evicted. */
int fresh_mark(struct attachment *attachment, pgoff_t first, pgoff_t last)
{
	pgoff_t index = first;

	while (index <= last) {
		struct fresh_span *span = find_or_add(attachment, index >> SPAN_SHIFT);
		pgoff_t end = min(last, span_of(index) + SPAN_PAGES - 1);

		if (IS_ERR(span))
			return PTR_ERR(span);
		/* Bit by bit: other threads clear bits of the same words. */
		for (; index <= end; index++)
			set_bit(index % SPAN_PAGES, span->pages);
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

bool fresh_is(struct attachment *attachment, pgoff_t index)
{
	struct fresh_span *span;

	if (xa_empty(&attachment->fresh))
		return false;
	span = xa_load(&attachment->fresh, index >> SPAN_SHIFT);
	return span && test_bit(index % SPAN_PAGES, span->pages);
}

/* A page, whose folio is locked, was written to the backing: it is fresh no longer. */
void fresh_clear(struct attachment *attachment, pgoff_t index)
{
	struct fresh_span *span;

	if (xa_empty(&attachment->fresh))
		return;
	span = xa_load(&attachment->fresh, index >> SPAN_SHIFT);
	if (span)
		clear_bit(index % SPAN_PAGES, span->pages);
}

/* Unmarks pages: their contents in the backing matter after all. */
void fresh_forget(struct attachment *attachment, pgoff_t first, pgoff_t last)
{
	struct fresh_span *span;
	unsigned long number;

	xa_for_each_range(&attachment->fresh, number, span, first >> SPAN_SHIFT,
			  last >> SPAN_SHIFT) {
		pgoff_t start = number << SPAN_SHIFT;
		pgoff_t index = max(first, start), end = min(last, start + SPAN_PAGES - 1);

		for (; index <= end; index++)
			clear_bit(index % SPAN_PAGES, span->pages);
		cond_resched();
	}
}

void fresh_free(struct attachment *attachment)
{
	struct fresh_span *span;
	unsigned long number;

	xa_for_each(&attachment->fresh, number, span) {
		kfree(span);
		cond_resched();
	}
	xa_destroy(&attachment->fresh);
}
