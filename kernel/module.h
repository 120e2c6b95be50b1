/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The parts of the module and their locks.
 *
 * A pool is memory that any number of attachments share: frames, each with a
 * page. An attachment is a file or block device with its pages in memory. Both are
 * divided by core: each span of 512 neighbouring pages belongs to one core, so that
 * neighbours stay together.
 *
 * Locks, outermost first; docs/design/kernel-module.md has the reasons:
 *
 *   mmap_lock or the lock of a VMA   (a fault holds it when it calls us)
 *   attachment->end_lock
 *   freeze protection of the backing's file system, for writing
 *   folio lock                       (several: by rising index, or by trylock)
 *   i_mmap_rwsem, page table locks   (within unmap_mapping_pages)
 *   xa_lock of shard->pages or shard->dirty, core->lock, pool->lock, lock of free_frames
 *                                    (leaves, never nested)
 *
 * The folio lock protects a frame: its holder may change which page the frame
 * stands for and whether it is dirty, and may map it.
 */
#ifndef VMIO_MODULE_H
#define VMIO_MODULE_H

#include <linux/bvec.h>
#include <linux/completion.h>
#include <linux/fs.h>
#include <linux/list.h>
#include <linux/maple_tree.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
#include <linux/refcount.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "compat.h"
#include "statistics.h"

#define SPAN_SHIFT 9
#define SPAN_PAGES (1UL << SPAN_SHIFT)
/* Failures of write-back in a row before faults stop waiting for it. */
#define FAILURES_TOLERATED 3
#define PRIORITIES 256
/* Sequential streams that are recognized at a time. */
#define STREAMS 16

struct vmio_usage;

/*
 * How long a fault waits while others hold all pages that it could get: in a system
 * call, which then ends early, and in a load or store, which then kills the program.
 */
#define PATIENCE_OF_CALLS HZ
#define PATIENCE_OF_LOADS (10 * HZ)

/* A time in which all pages were held and none could go. In jiffies; hints, no lock. */
struct stall {
	unsigned long began; /* 0: there is no stall */
	unsigned long seen; /* for the last time */
};

/*
 * A page of the pool. Its folio always has the pool's reference, so that a look-up
 * may take another at any time.
 */
struct frame {
	struct folio *folio; /* NULL while spare */
	struct attachment *attachment; /* NULL while free; folio lock */
	u64 epoch; /* of the attachment when it became dirty; folio lock */
	/* its core's clean one or its shard's dirty one; core->lock. Or a free one; its lock */
	struct list_head queue;
	struct list_head batch; /* for the holder of the folio lock */
	bool dirty; /* folio lock */
	bool held; /* somebody held the page when it was last written; folio lock */
	u8 priority; /* folio lock */
	bool recent; /* a fault has mapped it since the last visit of an evictor; folio lock */
	bool poisoned; /* holds a pattern: see verify.c; folio lock */
	u64 arrival; /* of the read to verify; 0: may be mapped; folio lock */
};

/* Free frames of one node's memory: a core's own, or the node's. */
struct free_frames {
	spinlock_t lock;
	struct list_head frames;
	unsigned long count; /* written under the lock, read without */
} ____cacheline_aligned_in_smp;

/* The part of a pool for a core, so that cores seldom contend for a lock. */
struct core {
	struct free_frames free;
	int node; /* of memory, the nearest */
	spinlock_t lock;
	struct list_head clean[PRIORITIES]; /* least recently charged or visited first */
	/* those whose queues may have a frame; core->lock to write */
	DECLARE_BITMAP(priorities, PRIORITIES);
	/* written under the lock, read without */
	unsigned long clean_count, dirty_count;
} ____cacheline_aligned_in_smp;

struct pool {
	refcount_t references;
	struct mutex resize_lock; /* for blocks, spare and the number of frames */
	/* of frames; they stay until the pool goes, since look-ups may use them */
	struct list_head blocks;
	struct list_head spare; /* frames without a page */
	unsigned long frame_count; /* those with one */
	unsigned long wanted; /* the same, or the new size; resize_lock to write */
	atomic_long_t pinned; /* pages that pins hold, counted once for each pin */
	int last_node; /* that memory was allocated from; resize_lock */
	struct free_frames *nodes; /* nr_node_ids of them: free frames of no core */
	struct core *cores;
	unsigned int core_count; /* a power of two */
	spinlock_t lock; /* for attachments */
	struct list_head attachments;
	wait_queue_head_t freed; /* faults that wait for a frame, or for fewer dirty pages */
	atomic_t waiting; /* their number */
	struct stall stall;
	struct statistics statistics;
};

static inline void count(struct pool *pool, enum statistic statistic, u64 number)
{
	this_cpu_add(pool->statistics.counts->of[statistic], number);
}

/* An attachment's part of a core. */
struct shard {
	struct xarray pages; /* index to frame: all pages in memory or being read */
	/* index to frame: dirty pages, sorted, so that neighbours are written together */
	struct xarray dirty;
	struct list_head dirty_queue; /* the same, longest dirty first; core->lock */
};

struct attachment {
	struct pool *pool;
	struct inode *inode; /* its i_mapping has the VMAs: the reverse map */
	struct inode *host; /* of the backing: its length */
	struct file *reader;
	struct file *writer; /* NULL until it is attached by a descriptor for writing */
	struct shard *shards; /* as many as the pool has cores */
	struct list_head of_pool; /* pool->lock */
	struct delayed_work write_back;
	/* of write-back in a row, with nothing written in between; a hint, no lock */
	unsigned int failures;
	atomic_long_t resident;
	atomic_long_t dirty; /* of these */
	atomic_long_t pinned; /* pages that pins hold, counted once for each pin */
	unsigned long limit; /* for resident, in pages */
	struct stall stall; /* at the limit */
	struct stall stores_stall; /* too many are dirty */
	unsigned long hand; /* where eviction at the limit continues */
	atomic64_t epoch; /* counts syncs */
	bool verify; /* pages before they are mapped: see verify.c */
	atomic64_t arrivals; /* counts reads of pages, if verify is set */
	int flush_error; /* of the first flush of the backing that failed */
	struct maple_tree priorities; /* of ranges of pages */
	struct xarray fresh; /* by span: see fresh.c */
	atomic_long_t fresh_spans;
	unsigned int read_ahead; /* pages after a missed one, if it continues a stream */
	/* the next pages of recent streams, by span; hints, no lock */
	pgoff_t streams[STREAMS];
	struct mutex end_lock; /* for end */
	unsigned long end; /* pages of the backing when last checked */
	unsigned int users; /* descriptors; registry_lock */
	bool closing; /* registry_lock */
	struct list_head registered; /* registry_lock */
};

static inline unsigned int this_core(const struct pool *pool)
{
	return raw_smp_processor_id() & (pool->core_count - 1);
}

static inline unsigned int core_of(const struct attachment *attachment, pgoff_t index)
{
	return (index >> SPAN_SHIFT) & (attachment->pool->core_count - 1);
}

/* The most pages of an attachment in memory. */
static inline unsigned long resident_max(const struct attachment *attachment)
{
	return min(attachment->limit, READ_ONCE(attachment->pool->frame_count));
}

/*
 * The most dirty pages of an attachment. It leaves memory for pages that are read,
 * whatever happens to the device, and for the other attachments.
 */
static inline unsigned long dirty_max(const struct attachment *attachment)
{
	return resident_max(attachment) / 4 * 3;
}

/*
 * How many of a number of pages may be pinned. They may all stay dirty, and some pages
 * must remain for stores that do not wait.
 */
static inline long pinned_max(unsigned long pages)
{
	return pages / 2;
}

static inline bool has_too_many_dirty(const struct attachment *attachment)
{
	return atomic_long_read(&attachment->dirty) >= dirty_max(attachment);
}

/* Whether its device fails repeatedly, so that nobody should wait for it. */
static inline bool is_failing(const struct attachment *attachment)
{
	return READ_ONCE(attachment->failures) >= FAILURES_TOLERATED;
}

static inline pgoff_t span_of(pgoff_t index)
{
	return index & ~(SPAN_PAGES - 1);
}

/* Whether a frame, whose folio is locked, stands for a page. */
static inline bool frame_is(const struct frame *frame, const struct attachment *attachment,
			    pgoff_t index)
{
	return frame->attachment == attachment && frame->folio->index == index;
}

/* The most pages of one read. */
#define READ_PAGES_MAX 32

/* Neighbouring pages that are read by one request, whose thread waits for its end. */
struct read {
	struct kiocb iocb;
	struct completion ended;
	struct bio_vec pages[READ_PAGES_MAX];
	unsigned int count;
	loff_t position;
	ssize_t result; /* bytes read, or an error */
};

struct load {
	struct attachment *attachment;
	/* of neighbouring pages, their folios locked; the missed one first */
	struct frame *frames[READ_PAGES_MAX];
	unsigned int count;
	bool fresh; /* nothing is read */
	struct read read;
};

enum patience {
	AT_ONCE,
	UNTIL_KILLED,
	AS_LONG_AS_IT_TAKES,
};

/* pool.c */
struct pool *pool_create(unsigned long pages);
int pool_resize(struct pool *pool, unsigned long pages);
void pool_get(struct pool *pool);
void pool_put(struct pool *pool);
void pool_clean(struct pool *pool);
bool pool_is_stuck(struct pool *pool);
bool pool_is_held(struct pool *pool);
void pool_usage(struct pool *pool, struct vmio_usage *usage);

/* free.c */
struct frame *take_free(struct pool *pool);
void frames_free(struct pool *pool, struct list_head *frames);
void frame_free(struct pool *pool, struct frame *frame);
bool pool_has_free(const struct pool *pool);
int free_frames_init(struct pool *pool);

/* frame.c */
struct frame *frame_find_in(struct pool *pool);
struct frame *frame_find(struct attachment *attachment);
bool frames_are_stuck(struct attachment *attachment, unsigned long patience);
int wait_for_frame(struct pool *pool);
bool pool_has_free_or_clean(const struct pool *pool);
int frame_lock(struct frame *frame, struct attachment *attachment, pgoff_t index,
	       enum patience patience);
int frame_assign(struct frame *frame, struct attachment *attachment, pgoff_t index);
void frame_release(struct frame *frame);
void frame_replace_page(struct frame *frame);
void frame_enqueue(struct frame *frame);
void frame_prioritize(struct frame *frame, u8 priority);
void frame_dequeue(struct frame *frame, struct list_head *frames);
struct frame *frame_lock_victim(struct core *core, unsigned int priority);
struct frame *frame_lock_dirty(struct core *core, struct shard *shard);
void frames_visited(struct core *core, struct list_head *batch, struct list_head *free);
struct core *frame_core(const struct frame *frame);
void frame_requeue(struct frame *frame, bool dirty);
unsigned long frames_written(struct attachment *attachment, pgoff_t start, struct list_head *batch);

/* attachment.c */
extern const struct file_operations attachment_file_operations;
int attach(struct pool *pool, int fd, bool verify, unsigned long limit);
void show_attachments(struct seq_file *seq);
pgoff_t attachment_end(struct attachment *attachment);

/* advice.c */
u8 priority_of(struct attachment *attachment, pgoff_t index);
bool whole_pages(u64 offset, u64 length, pgoff_t *first, pgoff_t *last);
long attachment_ioctl(struct file *file, unsigned int command, unsigned long argument);

/* fresh.c */
int fresh_mark(struct attachment *attachment, pgoff_t first, pgoff_t last);
bool fresh_is(struct attachment *attachment, pgoff_t index);
void fresh_clear(struct attachment *attachment, pgoff_t index);
void fresh_forget(struct attachment *attachment, pgoff_t first, pgoff_t last);
void fresh_free(struct attachment *attachment);

/* fault.c */
extern const struct vm_operations_struct mapping_operations;

/* load.c */
int load_begin(struct load *load, struct attachment *attachment, struct frame *frame,
	       pgoff_t index);
bool load_must_wait(struct load *load);
int load_end(struct load *load, bool by_store);

/* evict.c */
unsigned long evict(struct pool *pool, unsigned int first_core);
unsigned long evict_from(struct attachment *attachment);
long evict_range(struct attachment *attachment, pgoff_t first, pgoff_t last, bool dirty_too);

/* flush.c */
void flush_init(void);
bool flushes_are_batched(void);
void unmap_without_flush(struct folio *folio);
void flush_unmapped(void);

/* stall.c */
void stall_end(struct stall *stall);
bool frame_is_held(const struct frame *frame);
bool pool_is_stalled(struct pool *pool, unsigned long patience);
bool attachment_is_stalled(struct attachment *attachment, unsigned long patience);
bool stores_are_stalled(struct attachment *attachment, unsigned long patience);

/* residence.c */
pgoff_t next_resident(struct attachment *attachment, pgoff_t index, pgoff_t last);
pgoff_t next_dirty(struct attachment *attachment, pgoff_t index, pgoff_t last);
void erase_of_span(struct xarray *tree, pgoff_t start, const unsigned long *pages);
long report_usage(const struct vmio_usage *usage, void __user *argument);
long attachment_usage(struct attachment *attachment, void __user *argument);
long list_resident(struct attachment *attachment, const void __user *argument);
long give_up(struct attachment *attachment, pgoff_t first, pgoff_t last);
long discard(struct attachment *attachment, pgoff_t first, pgoff_t last);

/* pin.c */
long pin_pages(struct file *file, const void __user *argument);

/* verify.c */
void admit_if_fresh(struct frame *frame);
long inspect(struct attachment *attachment, void __user *argument);
long admit(struct attachment *attachment, const void __user *argument);
long poison(struct attachment *attachment, const void __user *argument);

/* write_back.c */
bool has_holder(const struct folio *folio);
int write_dirty(struct attachment *attachment, pgoff_t first, pgoff_t last);
void write_back(struct work_struct *work);
unsigned long dirty_pages(const struct pool *pool);
void write_back_if_many(struct attachment *attachment);
int wait_for_write_back(struct attachment *attachment);
int write_back_init(void);
void write_back_exit(void);

/* backing.c */
struct write_batch;
struct write_batch *write_batch_new(void);
void write_batch_free(struct write_batch *batch);
void backing_read_begin(struct attachment *attachment, struct frame **frames, unsigned int count,
			struct read *read);
bool backing_read_must_wait(struct read *read);
int backing_read_end(struct attachment *attachment, struct read *read);
int backing_write(struct attachment *attachment, struct list_head *frames,
		  struct write_batch *batch,
		  struct list_head *failed_frames);

#endif
