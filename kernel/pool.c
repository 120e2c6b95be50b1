// SPDX-License-Identifier: GPL-2.0
/*
 * The memory of a pool: allocated when it is reserved and when it grows, and handed
 * out frame by frame (free.c).
 */

#include <linux/module.h>
#include <linux/rculist.h>
#include <linux/sched/signal.h>
#include <linux/vmalloc.h>

#include "module.h"
#include "uapi/vmio.h"

#define POOL_PAGES_MIN 64
/* The order of one allocation, if the page allocator has it: 2 MiB with pages of 4 KiB. */
#define BLOCK_ORDER 9

static unsigned long limit_mib;
module_param(limit_mib, ulong, 0644);
MODULE_PARM_DESC(limit_mib, "MiB that all pools together may take (0: half of the memory)");

static atomic_long_t pages_reserved;

static bool charge(unsigned long pages)
{
	unsigned long limit = READ_ONCE(limit_mib) << (20 - PAGE_SHIFT);
	long sum = atomic_long_add_return(pages, &pages_reserved);

	if (!limit)
		limit = totalram_pages() / 2;
	/* Compared alone first: the sum below may overflow. */
	if (pages <= limit && sum > 0 && sum <= limit)
		return true;
	atomic_long_sub(pages, &pages_reserved);
	return false;
}

/* Frames that were allocated together. */
struct frame_block {
	struct list_head blocks;
	unsigned long count;
	struct frame frames[];
};

static int add_spares(struct pool *pool, unsigned long number)
{
	struct frame_block *block = __vmalloc(struct_size(block, frames, number),
					      GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN);
	unsigned long i;

	if (!block)
		return -ENOMEM;
	block->count = number;
	for (i = 0; i < number; i++)
		list_add_tail(&block->frames[i].queue, &pool->spare);
	/* See pool_is_held. */
	list_add_rcu(&block->blocks, &pool->blocks);
	return 0;
}

static void add_frame(struct pool *pool, struct page *page)
{
	struct frame *frame = list_first_entry(&pool->spare, struct frame, queue);

	list_del(&frame->queue);
	page_folio(page)->private = frame;
	WRITE_ONCE(frame->folio, page_folio(page));
	WRITE_ONCE(pool->frame_count, pool->frame_count + 1);
	frame_free(pool, frame);
}

static unsigned long spares(const struct pool *pool)
{
	struct list_head *spare;
	unsigned long number = 0;

	list_for_each(spare, &pool->spare)
		number++;
	return number;
}

/* Allocates from the nodes in turn, unless the program has a memory policy. */
static struct page *alloc_near(struct pool *pool, gfp_t gfp, unsigned int order)
{
#ifdef CONFIG_NUMA
	if (!current->mempolicy) {
		pool->last_node = next_node_in(pool->last_node, node_states[N_MEMORY]);
		return alloc_pages_node(pool->last_node, gfp, order);
	}
#endif
	return alloc_pages(gfp, order);
}

static int grow_to(struct pool *pool, unsigned long wanted)
{
	unsigned long missing = wanted - pool->frame_count, have = spares(pool);
	int error = missing > have ? add_spares(pool, missing - have) : 0;

	while (!error && pool->frame_count < wanted) {
		bool many = wanted - pool->frame_count >= 1UL << BLOCK_ORDER;
		unsigned int order = many ? BLOCK_ORDER : 0;
		gfp_t easily = GFP_KERNEL_ACCOUNT | __GFP_NOWARN | __GFP_NORETRY;
		struct page *block = order ? alloc_near(pool, easily, order) : NULL;
		unsigned long page;

		if (block) {
			split_page(block, order);
		} else {
			order = 0;
			block = alloc_near(pool, GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL |
					   __GFP_NOWARN, order);
			if (!block)
				return -ENOMEM;
		}
		for (page = 0; page < 1UL << order; page++)
			add_frame(pool, block + page);
		if (fatal_signal_pending(current))
			error = -EINTR;
		cond_resched();
	}
	return error;
}

/* Returns the page of a free frame to the system. */
static void remove_frame(struct pool *pool, struct frame *frame)
{
	struct folio *folio = frame->folio;

	/* Threads that looked it up for its former page hold the lock for a moment. */
	folio_lock(folio);
	folio->private = NULL;
	WRITE_ONCE(frame->folio, NULL);
	folio_unlock(folio);
	folio_put(folio);
	list_add(&frame->queue, &pool->spare);
	WRITE_ONCE(pool->frame_count, pool->frame_count - 1);
	atomic_long_dec(&pages_reserved);
}

/* EIO: all candidates are dirty, and cannot be written. */
static int shrink_to(struct pool *pool, unsigned long wanted)
{
	while (pool->frame_count > wanted) {
		struct frame *frame = frame_find_in(pool);

		if (frame) {
			remove_frame(pool, frame);
		} else {
			int error;

			if (!pool_has_free_or_clean(pool) && pool_is_stuck(pool))
				return -EIO;
			if (pool_is_stalled(pool, PATIENCE_OF_LOADS))
				return -EBUSY;
			error = wait_for_frame(pool);
			if (error)
				return error;
		}
		cond_resched();
	}
	return 0;
}

/* VMIO_RESIZE. If it fails the pool may have any size in between. */
int pool_resize(struct pool *pool, unsigned long pages)
{
	int error;

	if (pages < POOL_PAGES_MIN)
		return -EINVAL;
	if (mutex_lock_killable(&pool->resize_lock))
		return -EINTR;
	if (pages <= pool->frame_count) {
		WRITE_ONCE(pool->wanted, pages);
		/* A thread that pins counts its pages first, and checks wanted afterwards. */
		smp_mb();
		if (atomic_long_read(&pool->pinned) > pinned_max(pages))
			error = -EBUSY;
		else
			error = shrink_to(pool, pages);
	} else if (!charge(pages - pool->frame_count)) {
		error = -ENOMEM;
	} else {
		error = grow_to(pool, pages);
		atomic_long_sub(pages - pool->frame_count, &pages_reserved);
		wake_up_all(&pool->freed);
	}
	WRITE_ONCE(pool->wanted, pool->frame_count);
	mutex_unlock(&pool->resize_lock);
	return error;
}

static void pool_free(struct pool *pool, unsigned long reserved)
{
	struct frame_block *block, *next;
	unsigned long i;

	list_for_each_entry_safe(block, next, &pool->blocks, blocks) {
		for (i = 0; i < block->count; i++) {
			struct folio *folio = block->frames[i].folio;

			if (folio) {
				folio->private = NULL;
				folio_put(folio);
			}
		}
		vfree(block);
	}
	kvfree(pool->nodes);
	kvfree(pool->cores);
	statistics_end(&pool->statistics);
	kfree(pool);
	atomic_long_sub(reserved, &pages_reserved);
}

struct pool *pool_create(unsigned long pages)
{
	struct pool *pool;
	unsigned int i, priority;
	int error = -ENOMEM;

	if (pages < POOL_PAGES_MIN)
		return ERR_PTR(-EINVAL);
	if (!charge(pages))
		return ERR_PTR(-ENOMEM);
	pool = kzalloc(sizeof(*pool), GFP_KERNEL_ACCOUNT);
	if (!pool) {
		atomic_long_sub(pages, &pages_reserved);
		return ERR_PTR(-ENOMEM);
	}
	refcount_set(&pool->references, 1);
	spin_lock_init(&pool->lock);
	mutex_init(&pool->resize_lock);
	pool->last_node = NUMA_NO_NODE;
	INIT_LIST_HEAD(&pool->attachments);
	INIT_LIST_HEAD(&pool->blocks);
	INIT_LIST_HEAD(&pool->spare);
	init_waitqueue_head(&pool->freed);
	pool->core_count = roundup_pow_of_two(num_possible_cpus());
	pool->cores = kvcalloc(pool->core_count, sizeof(*pool->cores), GFP_KERNEL_ACCOUNT);
	if (!pool->cores || free_frames_init(pool) || statistics_begin(&pool->statistics))
		goto failed;
	for (i = 0; i < pool->core_count; i++) {
		spin_lock_init(&pool->cores[i].lock);
		for (priority = 0; priority < PRIORITIES; priority++)
			INIT_LIST_HEAD(&pool->cores[i].clean[priority]);
	}
	error = grow_to(pool, pages);
	if (error)
		goto failed;
	pool->wanted = pages;
	return pool;
failed:
	pool_free(pool, pages);
	return ERR_PTR(error);
}

void pool_get(struct pool *pool)
{
	refcount_inc(&pool->references);
}

void pool_put(struct pool *pool)
{
	if (refcount_dec_and_test(&pool->references))
		pool_free(pool, pool->frame_count);
}

/* Makes all attachments write their dirty pages, since a fault waits for memory. */
void pool_clean(struct pool *pool)
{
	struct attachment *attachment;

	spin_lock(&pool->lock);
	list_for_each_entry(attachment, &pool->attachments, of_pool)
		write_back_if_many(attachment);
	spin_unlock(&pool->lock);
}

/* Whether all dirty pages belong to failing devices. */
bool pool_is_stuck(struct pool *pool)
{
	struct attachment *attachment;
	bool failing = false;

	spin_lock(&pool->lock);
	list_for_each_entry(attachment, &pool->attachments, of_pool) {
		if (!atomic_long_read(&attachment->dirty))
			continue;
		failing = is_failing(attachment);
		if (!failing)
			break;
	}
	spin_unlock(&pool->lock);
	return failing;
}

/*
 * Whether all frames are held by others, or dirty and cannot be written. Blocks of
 * frames are only ever added while the pool exists, so this needs no lock.
 */
bool pool_is_held(struct pool *pool)
{
	bool failing = pool_is_stuck(pool);
	struct frame_block *block;
	unsigned long i;

	list_for_each_entry_rcu(block, &pool->blocks, blocks, true) {
		for (i = 0; i < block->count; i++) {
			const struct frame *frame = &block->frames[i];

			if (!frame_is_held(frame) && !(failing && READ_ONCE(frame->dirty)))
				return false;
			if (i % SPAN_PAGES == 0)
				cond_resched();
		}
	}
	return true;
}

/* The pages of a pool and its attachments. */
void pool_usage(struct pool *pool, struct vmio_usage *usage)
{
	struct attachment *attachment;

	usage->pages = READ_ONCE(pool->frame_count);
	usage->pinned = atomic_long_read(&pool->pinned);
	spin_lock(&pool->lock);
	list_for_each_entry(attachment, &pool->attachments, of_pool) {
		usage->resident += atomic_long_read(&attachment->resident);
		usage->dirty += atomic_long_read(&attachment->dirty);
	}
	spin_unlock(&pool->lock);
}
