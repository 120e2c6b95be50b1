// SPDX-License-Identifier: GPL-2.0
/*
 * Evicts clean pages, a span at a time: that costs one walk of the page tables and
 * one TLB shootdown, whatever the number of pages.
 *
 * The victim is the oldest page of the highest priority number that any core has,
 * with the pages of its span that have no lower number. The span's clean pages are
 * unmapped. Those that no fault has mapped since the last visit are evicted. The
 * others stay in memory, unmapped, and a minor fault shows that they are in use:
 * the second chance of CLOCK, for each page.
 */

#include <linux/module.h>

#include "module.h"
#include "uapi/vmio.h"

/* The number of pages that one call evicts, if it can. */
#define BATCH_PAGES 64
/* Visits of a victim with other references before it counts as held. */
#define HELD_VISITS 10
/* Spans to visit before recent pages are evicted, too: no thread must walk all of memory. */
#define PATIENT_VISITS 4
/* The most pages of a span that are unmapped one by one, if flushes are batched. */
#define SCATTERED_MAX 8
/* Spans that are visited together in that case. */
#define SPANS_TOGETHER 16

/*
 * Locks the folios of one span's frames that are clean and have at least a priority
 * number, and lists these frames in the order of the file. held is one of its clean
 * frames whose folio was locked before, or NULL. Returns their number.
 */
static unsigned long lock_clean(struct attachment *attachment, struct frame *held, pgoff_t start,
				unsigned int priority, struct list_head *batch)
{
	XA_STATE(xas, &attachment->shards[core_of(attachment, start)].pages, start);
	unsigned long number = 0;
	struct frame *frame;

	rcu_read_lock();
	xas_for_each(&xas, frame, start + SPAN_PAGES - 1) {
		if (xas_retry(&xas, frame))
			continue;
		if (frame != held && frame_lock(frame, attachment, xas.xa_index, AT_ONCE))
			continue;
		if (frame->dirty || frame->priority < priority) {
			folio_unlock(frame->folio);
		} else {
			list_add_tail(&frame->batch, batch);
			number++;
		}
	}
	rcu_read_unlock();
	return number;
}

/* Unmaps a batch of frames of a span, by one walk and one TLB shootdown. */
static void unmap_batch(struct attachment *attachment, const struct list_head *batch)
{
	pgoff_t first = list_first_entry(batch, struct frame, batch)->folio->index;
	pgoff_t last = list_last_entry(batch, struct frame, batch)->folio->index;

	unmap_mapping_pages(attachment->inode->i_mapping, first, last - first + 1, false);
	count(attachment->pool, SPANS_UNMAPPED, 1);
}

/*
 * Evicts the victims among a batch of clean frames of a span, whose folios are
 * locked and unmapped. Returns their number.
 */
static unsigned long judge(struct list_head *batch, bool recent_too)
{
	struct frame *one = list_first_entry(batch, struct frame, batch);
	struct attachment *attachment = one->attachment;
	pgoff_t start = span_of(one->folio->index);
	struct shard *shard = &attachment->shards[core_of(attachment, start)];
	/* The attachment may be gone when the last frame is unlocked. */
	struct pool *pool = attachment->pool;
	struct core *core = frame_core(one);
	unsigned long evicted = 0, spared = 0, pinned = 0;
	DECLARE_BITMAP(gone, SPAN_PAGES) = {};
	struct frame *frame, *next;
	LIST_HEAD(free);

	list_for_each_entry(frame, batch, batch) {
		if (folio_ref_count(frame->folio) != 1) {
			/* A system call or a device uses it, or a thread waits for its lock. */
			pinned++;
		} else if (frame->recent && !recent_too) {
			spared++;
		} else {
			__set_bit(frame->folio->index - start, gone);
			evicted++;
		}
		frame->recent = false;
	}
	erase_of_span(&shard->pages, start, gone);
	list_for_each_entry(frame, batch, batch) {
		if (test_bit(frame->folio->index - start, gone))
			frame_release(frame);
	}
	frames_visited(core, batch, &free);
	list_for_each_entry_safe(frame, next, batch, batch) {
		list_del(&frame->batch);
		folio_unlock(frame->folio);
	}
	frames_free(pool, &free);
	count(pool, PAGES_EVICTED, evicted);
	count(pool, PAGES_SPARED, spared);
	count(pool, PAGES_PINNED, pinned);
	return evicted;
}

/* Evicts pages of a span with at least a priority number. Returns the number of pages. */
static unsigned long visit(struct attachment *attachment, struct frame *held, pgoff_t start,
			   unsigned int priority,
			   bool recent_too)
{
	LIST_HEAD(batch);

	if (!lock_clean(attachment, held, start, priority, &batch))
		return 0;
	unmap_batch(attachment, &batch);
	return judge(&batch, recent_too);
}

/*
 * Evicts from the span of a core's clean frame, whose folio is locked. If flushes are
 * batched, also from the spans that follow in the queue: one flush for all spans with
 * few such pages.
 */
static unsigned long visit_several(struct core *core, struct frame *held, unsigned int priority,
				   bool recent_too)
{
	struct pool *pool = held->attachment->pool;
	struct list_head batches[SPANS_TOGETHER];
	unsigned long pages = 0, scattered = 0, evicted = 0;
	unsigned int spans = 0, i;

	do {
		struct attachment *attachment = held->attachment;
		struct list_head *batch = &batches[spans++];
		unsigned long number;
		struct frame *frame;
		LIST_HEAD(none);

		INIT_LIST_HEAD(batch);
		number = lock_clean(attachment, held, span_of(held->folio->index), priority,
				    batch);
		if (number > SCATTERED_MAX) {
			unmap_batch(attachment, batch);
		} else {
			list_for_each_entry(frame, batch, batch)
				unmap_without_flush(frame->folio);
			scattered += number;
		}
		pages += number;
		/* So that another thread finds the next one. */
		frames_visited(core, batch, &none);
		held = NULL;
		if (spans < SPANS_TOGETHER && pages < BATCH_PAGES)
			held = frame_lock_victim(core, priority);
	} while (held);
	if (scattered)
		flush_unmapped();
	count(pool, PAGES_SCATTERED, scattered);
	count(pool, FLUSHES_BATCHED, scattered != 0);
	for (i = 0; i < spans; i++)
		if (!list_empty(&batches[i]))
			evicted += judge(&batches[i], recent_too);
	return evicted;
}

/*
 * The core that may have the next victim, among priority numbers up to a maximum, which
 * is set to the one found; among equals the first from a core on.
 */
static struct core *core_with_highest(struct pool *pool, unsigned int first_core,
				      unsigned int *priority)
{
	struct core *highest = NULL;
	unsigned int limit = *priority, i;

	for (i = 0; i < pool->core_count; i++) {
		struct core *core = &pool->cores[(first_core + i) & (pool->core_count - 1)];
		unsigned int found = find_last_bit(core->priorities, limit + 1);

		if (found <= limit && (!highest || found > *priority)) {
			highest = core;
			*priority = found;
		}
	}
	return highest;
}

/* Evicts from a pool, beginning at a core, and returns the number of pages that it has freed. */
unsigned long evict(struct pool *pool, unsigned int first_core)
{
	unsigned int visits = 0, tries = 0, visits_max = PATIENT_VISITS + pool->core_count;
	unsigned int limit = PRIORITIES - 1;
	unsigned long evicted = 0;

	while (evicted < BATCH_PAGES && (!evicted || visits < visits_max)) {
		unsigned int priority = limit;
		struct core *core = core_with_highest(pool, first_core++, &priority);
		struct frame *frame = core ? frame_lock_victim(core, priority) : NULL;
		unsigned long number = 0;

		if (!core)
			break;
		if (frame) {
			bool recent_too = visits++ >= PATIENT_VISITS;

			if (flushes_are_batched())
				number = visit_several(core, frame, priority, recent_too);
			else
				number = visit(frame->attachment, frame,
					       span_of(frame->folio->index), priority, recent_too);
		}
		evicted += number;
		/* A core may turn out to have none, or only locked ones. */
		if (number || (visits < visits_max && ++tries < visits_max + pool->core_count))
			continue;
		/* All of this priority are in use by system calls or devices. */
		if (!priority)
			break;
		limit = priority - 1;
		tries = 0;
		visits = 0;
	}
	return evicted;
}

/*
 * Evicts pages with at least a priority number from an attachment at its limit, in the
 * order of the file, and advances the hand.
 */
static unsigned long evict_in_order(struct attachment *attachment, pgoff_t hand,
				    unsigned int priority)
{
	unsigned long evicted = 0;
	unsigned int visits;

	for (visits = 0; evicted < BATCH_PAGES && visits < 2 * PATIENT_VISITS; visits++) {
		pgoff_t next = next_resident(attachment, hand, ULONG_MAX);

		if (next != ULONG_MAX)
			evicted += visit(attachment, NULL, span_of(next), priority,
					 visits >= PATIENT_VISITS);
		hand = next == ULONG_MAX ? 0 : span_of(next) + SPAN_PAGES;
	}
	WRITE_ONCE(attachment->hand, hand);
	return evicted;
}

/*
 * Evicts from some spans of an attachment at its limit: first the most dispensable
 * pages, then those of the default priority, then the rest.
 */
unsigned long evict_from(struct attachment *attachment)
{
	pgoff_t hand = READ_ONCE(attachment->hand);
	unsigned long evicted = 0;

	if (!mtree_empty(&attachment->priorities)) {
		evicted = evict_in_order(attachment, hand, VMIO_PRIORITY_DEFAULT + 1);
		if (!evicted)
			evicted = evict_in_order(attachment, hand, VMIO_PRIORITY_DEFAULT);
	}
	return evicted ?: evict_in_order(attachment, hand, 0);
}

/*
 * Locks pages of one span in rising order of index, waiting as long as necessary.
 * EINTR: killed, and none is locked. Counts held dirty pages, which are left out.
 */
static int lock_range(struct attachment *attachment, pgoff_t first, pgoff_t last, bool dirty_too,
		      struct list_head *batch, unsigned long *held_dirty)
{
	struct shard *shard = &attachment->shards[core_of(attachment, first)];
	struct frame *frame, *next;
	unsigned long index;

	xa_for_each_range(&shard->pages, index, frame, first, last) {
		int error = frame_lock(frame, attachment, index, UNTIL_KILLED);

		if (error == -EINTR)
			goto killed;
		if (error)
			continue;
		if (frame->dirty && !dirty_too) {
			*held_dirty += has_holder(frame->folio);
			folio_unlock(frame->folio);
		} else {
			list_add_tail(&frame->batch, batch);
		}
	}
	return 0;
killed:
	list_for_each_entry_safe(frame, next, batch, batch) {
		list_del(&frame->batch);
		folio_unlock(frame->folio);
	}
	return -EINTR;
}

/*
 * Evicts pages of one span. Counts the pages that stay because they are held, without
 * dirty ones that should stay.
 */
static int evict_part(struct attachment *attachment, pgoff_t first, pgoff_t last, bool dirty_too,
		      unsigned long *held, unsigned long *held_dirty)
{
	unsigned int number = core_of(attachment, first);
	struct shard *shard = &attachment->shards[number];
	struct pool *pool = attachment->pool;
	struct frame *frame, *next;
	unsigned long evicted = 0;
	LIST_HEAD(batch);
	LIST_HEAD(free);
	int error;

	error = lock_range(attachment, first, last, dirty_too, &batch, held_dirty);
	if (error || list_empty(&batch))
		return error;
	unmap_mapping_pages(attachment->inode->i_mapping, first, last - first + 1, false);
	count(pool, SPANS_UNMAPPED, 1);
	list_for_each_entry_safe(frame, next, &batch, batch) {
		pgoff_t index = frame->folio->index;

		/* A holder of an unverified or poisoned page keeps only the folio. */
		if (folio_ref_count(frame->folio) != 1 && !frame->arrival && !frame->poisoned) {
			list_del(&frame->batch);
			folio_unlock(frame->folio);
			(*held)++;
			continue;
		}
		if (frame->dirty) {
			xa_erase(&shard->dirty, index);
			frame_requeue(frame, false);
		}
		xa_erase(&shard->pages, index);
		frame_release(frame);
		if (folio_ref_count(frame->folio) != 1)
			frame_replace_page(frame);
		evicted++;
	}
	frames_visited(&pool->cores[number], &batch, &free);
	list_for_each_entry_safe(frame, next, &batch, batch) {
		list_del(&frame->batch);
		folio_unlock(frame->folio);
	}
	frames_free(pool, &free);
	count(pool, PAGES_EVICTED, evicted);
	return 0;
}

/*
 * Evicts pages that nobody else uses, whatever their priority; dirty ones stay, or
 * lose their stores. A thread that waits for the lock of a page has a reference, too,
 * but not for long: only held pages stay. Returns their number.
 */
long evict_range(struct attachment *attachment, pgoff_t first, pgoff_t last, bool dirty_too)
{
	pgoff_t visited = ULONG_MAX;
	unsigned int visits = 0;
	unsigned long stay = 0;

	for (;;) {
		pgoff_t start = next_resident(attachment, first, last), end;
		unsigned long held = 0, held_dirty = 0;
		int error;

		if (start == ULONG_MAX)
			return stay;
		if (span_of(start) != visited)
			visits = 0;
		visited = span_of(start);
		end = min(last, visited + SPAN_PAGES - 1);
		error = evict_part(attachment, start, end, dirty_too, &held, &held_dirty);
		if (error)
			return error;
		if (held && ++visits < HELD_VISITS) {
			schedule_timeout_killable(1);
			if (fatal_signal_pending(current))
				return -EINTR;
			continue;
		}
		stay += held + held_dirty;
		if (end == last)
			return stay;
		first = end + 1;
		cond_resched();
	}
}
