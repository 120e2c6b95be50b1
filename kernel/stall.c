// SPDX-License-Identifier: GPL-2.0
/*
 * Stall detection: when a fault that waits for memory gives up.
 *
 * A page with another reference (a system call that copies, a device, a pipe, a
 * pin) is neither evicted nor counted as clean. A system call takes references to
 * the pages of a range one after the other, each by a fault if necessary, and drops
 * them at the end. If the range has more pages than there is memory, its own fault
 * waits for pages that it holds itself. So a fault waits only for a while if all
 * pages that it could get are held: it cannot find out whether the holder waits for
 * this very fault.
 */

#include <linux/jiffies.h>
#include <linux/module.h>

#include "module.h"

/*
 * Faults that wait check again ten times a second, or more seldom on a busy machine.
 * A stall that was last seen longer ago than this was another one.
 */
#define SEEN_AGAIN (2 * HZ)

/* Memory became free: a stall has ended. */
void stall_end(struct stall *stall)
{
	/* Nearly always there is none: the cache line must not move between cores. */
	if (READ_ONCE(stall->began))
		WRITE_ONCE(stall->began, 0);
}

/* Whether a stall has lasted that long; is_there says whether there is one now. */
static bool has_lasted(struct stall *stall, bool is_there, unsigned long patience)
{
	unsigned long now = jiffies, began = READ_ONCE(stall->began);

	if (!is_there) {
		stall_end(stall);
		return false;
	}
	if (!began || time_after(now, READ_ONCE(stall->seen) + SEEN_AGAIN)) {
		began = now ?: 1;
		WRITE_ONCE(stall->began, began);
	}
	WRITE_ONCE(stall->seen, now);
	return time_after_eq(now, began + patience);
}

/*
 * Whether the page of a frame has references beside those of the pool and page
 * tables. A page that is being read or written becomes available, so it does not
 * count as held. Without the folio lock this is a guess, made anew each time.
 */
bool frame_is_held(const struct frame *frame)
{
	struct folio *folio = READ_ONCE(frame->folio);

	/* It is a spare frame, without a page. */
	if (!folio)
		return true;
	if (folio_test_locked(folio) || !folio_test_uptodate(folio))
		return false;
	return folio_ref_count(folio) > 1 + atomic_read(&folio->_mapcount) + 1;
}

/* Whether all but a number of the pages in a tree of each core are held. */
static bool all_are_held(struct attachment *attachment, bool dirty_only, unsigned long but)
{
	unsigned int core;

	for (core = 0; core < attachment->pool->core_count; core++) {
		struct shard *shard = &attachment->shards[core];
		struct frame *frame;
		unsigned long index;

		xa_for_each(dirty_only ? &shard->dirty : &shard->pages, index, frame) {
			if (frame_is_held(frame))
				continue;
			if (!dirty_only && READ_ONCE(frame->dirty) && is_failing(attachment))
				continue;
			if (!but--)
				return false;
			cond_resched();
		}
	}
	return true;
}

/* Whether all pages of a pool have been held, or could not be written, for that long. */
bool pool_is_stalled(struct pool *pool, unsigned long patience)
{
	return has_lasted(&pool->stall, pool_is_held(pool), patience);
}

/* The same for an attachment that is at its limit of pages. */
bool attachment_is_stalled(struct attachment *attachment, unsigned long patience)
{
	return has_lasted(&attachment->stall, all_are_held(attachment, false, 0), patience);
}

/* Whether no more pages may become dirty since too many of the dirty ones are held. */
bool stores_are_stalled(struct attachment *attachment, unsigned long patience)
{
	long over = atomic_long_read(&attachment->dirty) - (long)dirty_max(attachment);
	bool is_there = over >= 0 && all_are_held(attachment, true, over);

	return has_lasted(&attachment->stores_stall, is_there, patience);
}
