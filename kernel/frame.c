// SPDX-License-Identifier: GPL-2.0
/* Frames: the pages they stand for, their locks, and their queues. */

#include <linux/module.h>
#include <linux/sched/signal.h>

#include "module.h"

/* Frames of a queue that are tried until one is not locked. */
#define TRIES 16

bool pool_has_free_or_clean(const struct pool *pool)
{
	unsigned int i;

	for (i = 0; i < pool->core_count; i++)
		if (READ_ONCE(pool->cores[i].clean_count))
			return true;
	return pool_has_free(pool);
}

static bool is_at_limit(const struct attachment *attachment)
{
	return atomic_long_read(&attachment->resident) >= attachment->limit;
}

static bool all_are_dirty(const struct attachment *attachment)
{
	return atomic_long_read(&attachment->dirty) >= atomic_long_read(&attachment->resident);
}

/*
 * Whether no frame can become free: all candidates are dirty and cannot be written, or
 * others have held them for that long.
 */
bool frames_are_stuck(struct attachment *attachment, unsigned long patience)
{
	struct pool *pool = attachment->pool;

	if (is_at_limit(attachment))
		return (is_failing(attachment) && all_are_dirty(attachment)) ||
		       attachment_is_stalled(attachment, patience);
	/* Pages that are being read will be clean. */
	return (dirty_pages(pool) >= READ_ONCE(pool->frame_count) && pool_is_stuck(pool)) ||
	       pool_is_stalled(pool, patience);
}

/* Waits, for a tenth of a second at most, until there may be a frame. EINTR: killed. */
int wait_for_frame(struct pool *pool)
{
	long left;

	count(pool, FAULTS_WAITED, 1);
	atomic_inc(&pool->waiting);
	pool_clean(pool);
	left = wait_event_killable_timeout(pool->freed, pool_has_free_or_clean(pool), HZ / 10);
	/*
	 * It did not wait: there are clean pages, but all are in use just now, or belong to
	 * other attachments than the one at its limit. Nobody signals when they are dropped;
	 * after a stall began, checking whether all are held takes longer.
	 */
	if (left == HZ / 10)
		schedule_timeout_killable(READ_ONCE(pool->stall.began) ? HZ / 50 : 1);
	atomic_dec(&pool->waiting);
	return fatal_signal_pending(current) ? -EINTR : 0;
}

/* A frame that is in no queue and that nobody else sees; NULL if there is none now. */
struct frame *frame_find_in(struct pool *pool)
{
	while (!fatal_signal_pending(current)) {
		struct frame *frame = take_free(pool);

		if (frame)
			return frame;
		if (!evict(pool, this_core(pool)))
			break;
		cond_resched();
	}
	return NULL;
}

/* The same for a page of an attachment, which may be at its limit. */
struct frame *frame_find(struct attachment *attachment)
{
	while (is_at_limit(attachment)) {
		if (fatal_signal_pending(current) || !evict_from(attachment))
			return NULL;
		cond_resched();
	}
	return frame_find_in(attachment->pool);
}

/*
 * Locks the folio of a frame that was looked up for a page. EAGAIN: it stands for
 * another page by now; EBUSY: somebody else has it locked; EINTR: killed.
 */
int frame_lock(struct frame *frame, struct attachment *attachment, pgoff_t index,
	       enum patience patience)
{
	struct folio *folio = READ_ONCE(frame->folio);
	int error = 0;

	/* As in the page cache, the folio may have been replaced and freed by now. */
	if (!folio || !folio_try_get(folio))
		return -EAGAIN;
	if (READ_ONCE(frame->folio) != folio) {
		folio_put(folio);
		return -EAGAIN;
	}
	if (patience == AT_ONCE)
		error = folio_trylock(folio) ? 0 : -EBUSY;
	else if (patience == UNTIL_KILLED)
		error = folio_lock_killable(folio);
	else
		folio_lock(folio);
	if (!error && (READ_ONCE(frame->folio) != folio || !frame_is(frame, attachment, index))) {
		folio_unlock(folio);
		error = -EAGAIN;
	}
	/* While it is locked, the pool keeps its own reference. */
	folio_put(folio);
	return error;
}

/*
 * Makes a frame stand for a page, with its folio locked until the page is ready.
 * EBUSY: another frame stands for it already.
 */
int frame_assign(struct frame *frame, struct attachment *attachment, pgoff_t index)
{
	struct shard *shard = &attachment->shards[core_of(attachment, index)];
	struct folio *folio = frame->folio;
	int error;

	/* Threads that looked it up for its former page hold the lock for a moment. */
	folio_lock(folio);
	folio->mapping = attachment->inode->i_mapping;
	folio->index = index;
	folio_clear_uptodate(folio);
	frame->attachment = attachment;
	frame->dirty = false;
	frame->recent = true;
	frame->poisoned = false;
	frame->arrival = attachment->verify ? atomic64_inc_return(&attachment->arrivals) : 0;
	atomic_long_inc(&attachment->resident);
	error = xa_insert(&shard->pages, index, frame, GFP_KERNEL);
	if (error) {
		frame_release(frame);
		folio_unlock(folio);
		return error;
	}
	/*
	 * From here on look-ups find the frame: a thread that changes the priority later
	 * waits for the lock.
	 */
	frame->priority = priority_of(attachment, index);
	return 0;
}

/* Takes the page of the file from a frame, which is in no tree any more. Its folio is locked. */
void frame_release(struct frame *frame)
{
	struct attachment *attachment = frame->attachment;

	frame->attachment = NULL;
	frame->folio->mapping = NULL;
	frame->folio->index = 0;
	stall_end(&attachment->stall);
	stall_end(&attachment->pool->stall);
	/* The attachment may go from here on: see detach(). */
	(void)atomic_long_dec_return_release(&attachment->resident);
}

/*
 * Gives a frame that stands for nothing a new page, since somebody else still holds the
 * old one (a device may yet write to it). Both folios are locked.
 */
void frame_replace_page(struct frame *frame)
{
	struct folio *old = frame->folio;
	/* Must not fail: the pool cannot go on with fewer frames than it has promised. */
	struct page *page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_NOFAIL);

	frame->folio = page_folio(page);
	frame->folio->private = frame;
	folio_lock(frame->folio);
	old->private = NULL;
	folio_unlock(old);
	folio_put(old);
}

/* The core of a frame's page. */
struct core *frame_core(const struct frame *frame)
{
	return &frame->attachment->pool->cores[core_of(frame->attachment, frame->folio->index)];
}

/*
 * Moves a frame to the end of the clean queue of its priority, from another queue or
 * none. core->lock is held.
 */
static void to_clean(struct core *core, struct frame *frame)
{
	list_move_tail(&frame->queue, &core->clean[frame->priority]);
	/* The thread that finds the queue empty clears it. */
	__set_bit(frame->priority, core->priorities);
}

/* Adds a frame that was just read to the end of its clean queue. Its folio is locked. */
void frame_enqueue(struct frame *frame)
{
	struct core *core = frame_core(frame);

	INIT_LIST_HEAD(&frame->queue);
	spin_lock(&core->lock);
	to_clean(core, frame);
	WRITE_ONCE(core->clean_count, core->clean_count + 1);
	spin_unlock(&core->lock);
}

/* Moves a clean frame, whose folio is locked, from its queue to a list. */
void frame_dequeue(struct frame *frame, struct list_head *frames)
{
	struct core *core = frame_core(frame);

	spin_lock(&core->lock);
	list_move_tail(&frame->queue, frames);
	WRITE_ONCE(core->clean_count, core->clean_count - 1);
	spin_unlock(&core->lock);
}

/* Gives a frame in a queue, whose folio is locked, another priority. */
void frame_prioritize(struct frame *frame, u8 priority)
{
	struct core *core = frame_core(frame);

	if (frame->priority == priority)
		return;
	spin_lock(&core->lock);
	frame->priority = priority;
	if (!frame->dirty)
		to_clean(core, frame);
	spin_unlock(&core->lock);
}

/*
 * The first frame of a queue whose folio can be locked at once. core->lock is held; the
 * attachment cannot go before the folio is unlocked.
 */
static struct frame *lock_first(const struct list_head *queue)
{
	struct frame *frame;
	int tries = TRIES;

	list_for_each_entry(frame, queue, queue) {
		if (folio_trylock(frame->folio))
			return frame;
		if (!--tries)
			break;
	}
	return NULL;
}

/*
 * The frame of an attachment's part of a core that has been dirty longest, with
 * its folio locked.
 */
struct frame *frame_lock_dirty(struct core *core, struct shard *shard)
{
	struct frame *frame;

	spin_lock(&core->lock);
	frame = lock_first(&shard->dirty_queue);
	spin_unlock(&core->lock);
	return frame;
}

/* The clean frame of a core and a priority that is to go first, with its folio locked. */
struct frame *frame_lock_victim(struct core *core, unsigned int priority)
{
	struct frame *frame;

	spin_lock(&core->lock);
	frame = lock_first(&core->clean[priority]);
	if (list_empty(&core->clean[priority]))
		__clear_bit(priority, core->priorities);
	spin_unlock(&core->lock);
	return frame;
}

/*
 * Sorts a batch of clean frames of a core, whose folios are locked: frames that stand for
 * nothing now go to a list, the others to the end of their queues.
 */
void frames_visited(struct core *core, struct list_head *batch, struct list_head *free)
{
	unsigned long freed = 0;
	struct frame *frame;

	spin_lock(&core->lock);
	list_for_each_entry(frame, batch, batch) {
		if (frame->attachment) {
			to_clean(core, frame);
		} else {
			list_move_tail(&frame->queue, free);
			freed++;
		}
	}
	WRITE_ONCE(core->clean_count, core->clean_count - freed);
	spin_unlock(&core->lock);
}

/* Makes a queued frame, whose folio is locked, dirty or clean, and the last of its queue. */
void frame_requeue(struct frame *frame, bool dirty)
{
	struct attachment *attachment = frame->attachment;
	struct shard *shard = &attachment->shards[core_of(attachment, frame->folio->index)];
	struct core *core = frame_core(frame);

	spin_lock(&core->lock);
	if (dirty)
		list_move_tail(&frame->queue, &shard->dirty_queue);
	else
		to_clean(core, frame);
	if (dirty != frame->dirty) {
		int more = dirty ? 1 : -1;

		atomic_long_add(more, &attachment->dirty);
		WRITE_ONCE(core->dirty_count, core->dirty_count + more);
		WRITE_ONCE(core->clean_count, core->clean_count - more);
		frame->dirty = dirty;
		if (!dirty)
			stall_end(&attachment->stores_stall);
	}
	spin_unlock(&core->lock);
}

/*
 * Sorts a batch of dirty frames of a span, whose folios are locked: frames that nobody
 * held become clean, and the others stay dirty. Each becomes the last of its queue.
 * Returns how many became clean.
 */
unsigned long frames_written(struct attachment *attachment, pgoff_t start, struct list_head *batch)
{
	unsigned int number = core_of(attachment, start);
	struct core *core = &attachment->pool->cores[number];
	unsigned long cleaned = 0;
	struct frame *frame;

	spin_lock(&core->lock);
	list_for_each_entry(frame, batch, batch) {
		if (frame->held) {
			list_move_tail(&frame->queue, &attachment->shards[number].dirty_queue);
		} else {
			to_clean(core, frame);
			frame->dirty = false;
			cleaned++;
		}
	}
	WRITE_ONCE(core->dirty_count, core->dirty_count - cleaned);
	WRITE_ONCE(core->clean_count, core->clean_count + cleaned);
	atomic_long_sub(cleaned, &attachment->dirty);
	if (cleaned)
		stall_end(&attachment->stores_stall);
	spin_unlock(&core->lock);
	return cleaned;
}
