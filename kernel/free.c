// SPDX-License-Identifier: GPL-2.0
/*
 * Free frames. Each core has a list of some, of its own node's memory. Each node has
 * the others in a queue, from which its cores take many at a time. Only when a node
 * has none left do its cores take frames of another node.
 */

#include <linux/module.h>

#include "module.h"

/* The most frames moved from a node to a core at a time: they are counted one by one under the node's lock. */
#define REFILL_MAX 512UL

/* In small pools the cores share the few frames. */
static unsigned long refill_of(const struct pool *pool)
{
	unsigned long share = READ_ONCE(pool->frame_count) / (4 * pool->core_count);

	return clamp(share, 1UL, REFILL_MAX);
}

static void put(struct free_frames *to, struct list_head *frames, unsigned long number)
{
	spin_lock(&to->lock);
	list_splice(frames, &to->frames);
	WRITE_ONCE(to->count, to->count + number);
	spin_unlock(&to->lock);
}

/* Takes a frame, and moves up to a number of others to a list. */
static struct frame *take(struct free_frames *from, unsigned long others, struct list_head *list)
{
	struct frame *frame;
	unsigned long number;

	if (!READ_ONCE(from->count))
		return NULL;
	spin_lock(&from->lock);
	frame = list_first_entry_or_null(&from->frames, struct frame, queue);
	if (frame) {
		list_del(&frame->queue);
		for (number = 0; number < others && !list_empty(&from->frames); number++)
			list_move(from->frames.next, list);
		WRITE_ONCE(from->count, from->count - number - 1);
	}
	spin_unlock(&from->lock);
	return frame;
}

static struct frame *take_one(struct free_frames *from)
{
	return take(from, 0, NULL);
}

/* A frame of a core's own node; some others move to the core's list. */
static struct frame *refill(struct pool *pool, struct core *core)
{
	LIST_HEAD(others);
	struct frame *frame = take(&pool->nodes[core->node], refill_of(pool) - 1, &others);

	frames_free(pool, &others);
	return frame;
}

/* A frame of another core's list, of a node or of any. */
static struct frame *steal(struct pool *pool, unsigned int thief, int node)
{
	unsigned int i;

	for (i = 1; i < pool->core_count; i++) {
		struct core *core = &pool->cores[(thief + i) & (pool->core_count - 1)];
		struct frame *frame;

		if (node != NUMA_NO_NODE && core->node != node)
			continue;
		frame = take_one(&core->free);
		if (frame)
			return frame;
	}
	return NULL;
}

/* A frame of another node's queue. */
static struct frame *take_far(struct pool *pool, unsigned int node)
{
	unsigned int i;

	for (i = 1; i < nr_node_ids; i++) {
		struct frame *frame = take_one(&pool->nodes[(node + i) % nr_node_ids]);

		if (frame)
			return frame;
	}
	return NULL;
}

/* The nearest free frame, removed from its queue; NULL if there is none. */
struct frame *take_free(struct pool *pool)
{
	unsigned int number = this_core(pool);
	struct core *core = &pool->cores[number];
	struct frame *frame;

	frame = take_one(&core->free);
	if (!frame)
		frame = refill(pool, core);
	if (!frame)
		frame = steal(pool, number, core->node);
	if (!frame)
		frame = take_far(pool, core->node);
	if (!frame)
		frame = steal(pool, number, NUMA_NO_NODE);
	if (frame)
		count(pool, folio_nid(frame->folio) == core->node ? FRAMES_NEAR : FRAMES_FAR, 1);
	return frame;
}

/* Frees frames of one node: to this core's list if it is of that node and has too few, else to the node's queue. */
static void give(struct pool *pool, int node, struct list_head *frames, unsigned long number)
{
	struct core *core = &pool->cores[this_core(pool)];
	unsigned long enough = 2 * refill_of(pool);

	if (core->node == node && READ_ONCE(core->free.count) + number <= enough)
		put(&core->free, frames, number);
	else
		put(&pool->nodes[node], frames, number);
}

/* Frees frames that are in no queue, and that this list links. */
void frames_free(struct pool *pool, struct list_head *frames)
{
	if (list_empty(frames))
		return;
	while (!list_empty(frames)) {
		struct frame *frame = list_first_entry(frames, struct frame, queue), *next;
		int node = folio_nid(frame->folio);
		unsigned long number = 0;
		LIST_HEAD(alike);

		list_for_each_entry_safe(frame, next, frames, queue) {
			if (folio_nid(frame->folio) != node)
				continue;
			list_move_tail(&frame->queue, &alike);
			number++;
		}
		give(pool, node, &alike, number);
	}
	if (wq_has_sleeper(&pool->freed))
		wake_up_all(&pool->freed);
}

/* Frees one frame. */
void frame_free(struct pool *pool, struct frame *frame)
{
	LIST_HEAD(unused);

	list_add(&frame->queue, &unused);
	frames_free(pool, &unused);
}

bool pool_has_free(const struct pool *pool)
{
	unsigned int i;

	for (i = 0; i < pool->core_count; i++)
		if (READ_ONCE(pool->cores[i].free.count))
			return true;
	for (i = 0; i < nr_node_ids; i++)
		if (READ_ONCE(pool->nodes[i].count))
			return true;
	return false;
}

static void init(struct free_frames *free)
{
	spin_lock_init(&free->lock);
	INIT_LIST_HEAD(&free->frames);
}

/* Sets up the lists of a pool that has its cores. */
int free_frames_init(struct pool *pool)
{
	unsigned int i;
	int cpu;

	pool->nodes = kvcalloc(nr_node_ids, sizeof(*pool->nodes), GFP_KERNEL_ACCOUNT);
	if (!pool->nodes)
		return -ENOMEM;
	for (i = 0; i < nr_node_ids; i++)
		init(&pool->nodes[i]);
	for (i = 0; i < pool->core_count; i++)
		init(&pool->cores[i].free);
	/* The node of a processor that is not present yet may be unknown. */
	for_each_possible_cpu(cpu)
		pool->cores[cpu & (pool->core_count - 1)].node = max(cpu_to_mem(cpu), 0);
	return 0;
}
