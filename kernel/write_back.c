// SPDX-License-Identifier: GPL-2.0
/*
 * Writes dirty pages to the backing, a span at a time: a sync writes all pages that
 * were dirty when it began, the background the span that has been dirty longest.
 * In the background each attachment writes for itself, so that a slow or failing
 * device does not delay the others.
 *
 * While a page is written it is locked, and unmapped or read-only: a store waits, and
 * makes the page dirty again, in a later epoch.
 */

#include <linux/module.h>
#include <linux/rmap.h>
#include <linux/sched/signal.h>

#include "module.h"

/*
 * Write-back begins when more than this percentage of a pool, or of an attachment's
 * limit, is dirty.
 */
#define DIRTY_PERCENT 50
/*
 * The pause before pages that were frozen, held or failed are tried again. It doubles
 * after each failure, up to 2^7 times its length.
 */
#define PAUSE (HZ / 20)
#define FAILURES_MAX 7
/*
 * The most pages of a span that are made read-only one by one, each with a TLB
 * shootdown. If there are more, all between the first and the last are unmapped, by
 * one shootdown.
 */
#define PROTECTED_MAX 8

static struct workqueue_struct *writers;

/*
 * The frames of a span that became dirty no later than in an epoch, in the order
 * of the file, their folios locked.
 */
static void lock_dirty(struct attachment *attachment, struct frame *held, pgoff_t first,
		       pgoff_t last, u64 epoch,
		       struct list_head *batch)
{
	XA_STATE(xas, &attachment->shards[core_of(attachment, first)].dirty, first);
	struct frame *frame;

	rcu_read_lock();
	xas_for_each(&xas, frame, last) {
		/* xas_pause below moves the index on. */
		pgoff_t index = xas.xa_index;
		int error = 0;

		if (xas_retry(&xas, frame))
			continue;
		if (frame != held)
			error = frame_lock(frame, attachment, index, AT_ONCE);
		if (error == -EBUSY && !held) {
			xas_pause(&xas);
			rcu_read_unlock();
			error = frame_lock(frame, attachment, index, AS_LONG_AS_IT_TAKES);
			rcu_read_lock();
		}
		if (error)
			continue;
		if (!frame->dirty || frame->epoch > epoch)
			folio_unlock(frame->folio);
		else
			list_add_tail(&frame->batch, batch);
	}
	rcu_read_unlock();
}

static void unlock_all(struct list_head *batch)
{
	struct frame *frame, *next;

	list_for_each_entry_safe(frame, next, batch, batch) {
		list_del(&frame->batch);
		folio_unlock(frame->folio);
	}
}

/*
 * Makes stores to locked pages (in rising order of index) fault and wait. Returns
 * whether the pages are unmapped.
 */
static bool end_stores(struct attachment *attachment, struct list_head *frames)
{
	pgoff_t first = list_first_entry(frames, struct frame, batch)->folio->index;
	pgoff_t last = list_last_entry(frames, struct frame, batch)->folio->index;
	unsigned long number = 0;
	struct frame *frame;

	list_for_each_entry(frame, frames, batch)
		number++;
	if (number > PROTECTED_MAX) {
		unmap_mapping_pages(attachment->inode->i_mapping, first, last - first + 1, false);
		count(attachment->pool, SPANS_UNMAPPED, 1);
		return true;
	}
	/*
	 * Not wp_shared_mapping_range, which leaves entries of page tables dirty: mprotect
	 * and others make such an entry writable again, and do not call page_mkwrite.
	 */
	list_for_each_entry(frame, frames, batch)
		folio_mkclean(frame->folio);
	count(attachment->pool, PAGES_PROTECTED, number);
	return false;
}

/*
 * Whether a page has references beside those of the pool and page tables. It is
 * locked, so that nobody maps it meanwhile. A thread that unmaps it drops its
 * reference last: for a moment the page looks held.
 */
bool has_holder(const struct folio *folio)
{
	int references = folio_ref_count(folio);

	/* Mappings are counted after references. */
	smp_rmb();
	return references != 1 + atomic_read(&folio->_mapcount) + 1;
}

/*
 * Adds to the number of pages made clean. held is a dirty frame of the span whose
 * folio is locked, or NULL. The caller has taken freeze protection of the file system;
 * it is dropped here, since the attachment may go.
 */
static int write_span(struct attachment *attachment, struct frame *held, pgoff_t first,
		      pgoff_t last, u64 epoch,
		      struct write_batch *batch, unsigned long *cleaned)
{
	struct shard *shard = &attachment->shards[core_of(attachment, first)];
	DECLARE_BITMAP(clean, SPAN_PAGES) = {};
	pgoff_t start = span_of(first);
	LIST_HEAD(all);
	LIST_HEAD(failed);
	struct frame *frame;
	bool unmapped;
	u64 now;
	int error;

	lock_dirty(attachment, held, first, last, epoch, &all);
	if (list_empty(&all)) {
		file_end_write(attachment->writer);
		return 0;
	}
	unmapped = end_stores(attachment, &all);
	/*
	 * A holder of a page may write to it without the page tables: it stays dirty until
	 * it is released. That may happen while it is written, and a sync that begins then
	 * must write it again: so both are determined before. Nobody can get hold of
	 * another page to write to it before it is unlocked. A page that could not be
	 * written keeps its epoch: a sync that waits for it must not skip it.
	 */
	list_for_each_entry(frame, &all, batch) {
		frame->held = has_holder(frame->folio);
		/* As if an evictor had visited it: a minor fault shows that it is in use. */
		if (unmapped)
			frame->recent = false;
	}
	now = atomic64_read(&attachment->epoch);
	/* The bytes that a holder wrote are read after its release was seen. */
	smp_rmb();
	error = backing_write(attachment, &all, batch, &failed);
	list_for_each_entry(frame, &all, batch) {
		fresh_clear(attachment, frame->folio->index);
		if (frame->held) {
			frame->epoch = now;
			count(attachment->pool, PAGES_PINNED, 1);
		} else {
			__set_bit(frame->folio->index - start, clean);
		}
	}
	erase_of_span(&shard->dirty, start, clean);
	*cleaned += frames_written(attachment, start, &all);
	list_for_each_entry(frame, &failed, batch)
		frame_requeue(frame, true);
	file_end_write(attachment->writer);
	/* The attachment may go when its last frame is unlocked. */
	unlock_all(&failed);
	unlock_all(&all);
	return error;
}

/* Wakes waiting faults with the result of a write. */
static void tell(struct attachment *attachment, unsigned long cleaned, int error)
{
	if (cleaned)
		WRITE_ONCE(attachment->failures, 0);
	else if (error)
		WRITE_ONCE(attachment->failures, min(attachment->failures + 1, FAILURES_MAX));
	if ((cleaned || error) && wq_has_sleeper(&attachment->pool->freed))
		wake_up_all(&attachment->pool->freed);
}

/* Writes the present dirty pages of a range. Returns the first error, after all were tried. */
int write_dirty(struct attachment *attachment, pgoff_t first, pgoff_t last)
{
	u64 epoch = atomic64_fetch_inc(&attachment->epoch);
	struct write_batch *batch = write_batch_new();
	unsigned long cleaned = 0;
	int result = 0;

	for (;;) {
		pgoff_t start = next_dirty(attachment, first, last), end;
		int error;

		if (start == ULONG_MAX)
			break;
		end = min(last, span_of(start) + SPAN_PAGES - 1);
		/* This may wait for a thaw, so no folio is locked: faults must go on. */
		file_start_write(attachment->writer);
		error = write_span(attachment, NULL, start, end, epoch, batch, &cleaned);
		if (!result)
			result = error;
		if (end == last)
			break;
		first = end + 1;
		cond_resched();
	}
	write_batch_free(batch);
	tell(attachment, cleaned, result);
	count(attachment->pool, SYNCS, 1);
	return result;
}

unsigned long dirty_pages(const struct pool *pool)
{
	unsigned long sum = 0;
	unsigned int i;

	for (i = 0; i < pool->core_count; i++)
		sum += READ_ONCE(pool->cores[i].dirty_count);
	return sum;
}

static bool should_write(const struct attachment *attachment)
{
	const struct pool *pool = attachment->pool;
	unsigned long dirty = atomic_long_read(&attachment->dirty);

	if (!dirty)
		return false;
	return atomic_read(&pool->waiting) ||
	       dirty > resident_max(attachment) * DIRTY_PERCENT / 100 ||
	       dirty_pages(pool) > READ_ONCE(pool->frame_count) * DIRTY_PERCENT / 100;
}

/* Starts background write-back of an attachment, unless it runs or pauses already. */
void write_back_if_many(struct attachment *attachment)
{
	if (should_write(attachment))
		queue_delayed_work(writers, &attachment->write_back, 0);
}

/*
 * Waits for a moment until fewer pages of an attachment are dirty, so that another may
 * become dirty. EINTR: killed.
 */
int wait_for_write_back(struct attachment *attachment)
{
	struct pool *pool = attachment->pool;
	long left;

	count(pool, FAULTS_WAITED, 1);
	atomic_inc(&pool->waiting);
	write_back_if_many(attachment);
	left = wait_event_killable_timeout(pool->freed,
					   !has_too_many_dirty(attachment), HZ / 10);
	atomic_dec(&pool->waiting);
	return left < 0 ? -EINTR : 0;
}

/* Writes a span of each core, and adds to the number of pages made clean. */
static int round_of_writes(struct attachment *attachment, struct write_batch *batch,
			   unsigned long *cleaned)
{
	struct pool *pool = attachment->pool;
	unsigned int core;
	int result = 0;

	for (core = 0; core < pool->core_count; core++) {
		struct frame *frame;
		pgoff_t start;
		int error;

		/* The file system is frozen. */
		if (!file_start_write_trylock(attachment->writer))
			break;
		frame = frame_lock_dirty(&pool->cores[core], &attachment->shards[core]);
		if (!frame) {
			file_end_write(attachment->writer);
			continue;
		}
		start = span_of(frame->folio->index);
		error = write_span(attachment, frame, start, start + SPAN_PAGES - 1, U64_MAX,
				   batch, cleaned);
		if (error)
			result = error;
		if (*cleaned && wq_has_sleeper(&pool->freed))
			wake_up_all(&pool->freed);
		cond_resched();
	}
	return result;
}

/*
 * Background write-back, so that memory does not run out of clean pages. While nothing
 * can be written it tries less and less often.
 */
void write_back(struct work_struct *work)
{
	struct attachment *attachment = container_of(to_delayed_work(work), struct attachment,
						     write_back);
	struct write_batch *batch = write_batch_new();
	unsigned long cleaned = 1;

	while (cleaned && should_write(attachment)) {
		int error;

		cleaned = 0;
		error = round_of_writes(attachment, batch, &cleaned);
		tell(attachment, cleaned, error);
	}
	write_batch_free(batch);
	if (!cleaned)
		queue_delayed_work(writers, &attachment->write_back,
				   PAUSE << READ_ONCE(attachment->failures));
}

int write_back_init(void)
{
	writers = alloc_workqueue("vmio-writers", WQ_UNBOUND, 0);
	return writers ? 0 : -ENOMEM;
}

void write_back_exit(void)
{
	destroy_workqueue(writers);
}
