// SPDX-License-Identifier: GPL-2.0
/*
 * When a fault that waits for memory gives up.
 *
 * A page that somebody refers to (a system call that copies, a device, a pipe, a
 * pin) is neither evicted nor taken for clean. A system call takes the pages of a
 * range one after the other, each by a fault if need be, and lets go of them at
 * the end: if it wants more than there are, its own fault waits for pages that it
 * holds itself. So if all that a fault could have is held, it waits for a while
 * only, since it cannot be told whether the holder waits for it.
 */

#include <linux/jiffies.h>
#include <linux/module.h>

#include "module.h"

/*
 * Those who wait look again ten times a second, or more seldom where the machine
 * is busy. What was seen longer ago than this was another standstill.
 */
#define SEEN_AGAIN (2 * HZ)

/* Something became free: whatever there was has ended. */
void standstill_ends(struct standstill *standstill)
{
	/* Nearly always there is none: this line is not to move between cores. */
	if (READ_ONCE(standstill->began))
		WRITE_ONCE(standstill->began, 0);
}

/* Whether one has lasted that long, of which it is known whether it is there now. */
static bool has_lasted(struct standstill *standstill, bool is_there, unsigned long patience)
{
	unsigned long now = jiffies, began = READ_ONCE(standstill->began);

	if (!is_there) {
		standstill_ends(standstill);
		return false;
	}
	if (!began || time_after(now, READ_ONCE(standstill->seen) + SEEN_AGAIN)) {
		began = now ?: 1;
		WRITE_ONCE(standstill->began, began);
	}
	WRITE_ONCE(standstill->seen, now);
	return time_after_eq(now, began + patience);
}

/*
 * Whether somebody refers to the page of a frame beside the pool and page tables.
 * One that is being read or written will be had when that is over, so it counts as
 * not held. Without its lock that is a guess, but of each page anew every time.
 */
bool frame_is_held(const struct frame *frame)
{
	struct folio *folio = READ_ONCE(frame->folio);

	/* It is spare: nobody will have it. */
	if (!folio)
		return true;
	if (folio_test_locked(folio) || !folio_test_uptodate(folio))
		return false;
	return folio_ref_count(folio) > 1 + atomic_read(&folio->_mapcount) + 1;
}

/* Whether all but so many of the pages in a tree of each core are held. */
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

/* Whether a pool has had nothing but held pages for so long, or what cannot be written. */
bool pool_stands_still(struct pool *pool, unsigned long patience)
{
	return has_lasted(&pool->standstill, pool_is_held(pool), patience);
}

/* The same of an attachment that has as many pages in memory as it may have. */
bool attachment_stands_still(struct attachment *attachment, unsigned long patience)
{
	return has_lasted(&attachment->standstill, all_are_held(attachment, false, 0), patience);
}

/* Whether so many of its dirty pages are held that no more may become dirty. */
bool stores_stand_still(struct attachment *attachment, unsigned long patience)
{
	long over = atomic_long_read(&attachment->dirty) - (long)dirty_max(attachment);
	bool is_there = over >= 0 && all_are_held(attachment, true, over);

	return has_lasted(&attachment->stores_standstill, is_there, patience);
}
