// SPDX-License-Identifier: GPL-2.0
/* Reads and writes runs of neighbouring pages of the backing, bypassing its page cache. */

#include <linux/highmem.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uio.h>

#include "module.h"

/* Neighbouring pages that are written by one request. */
struct run {
	struct kiocb iocb;
	struct write_batch *batch;
	struct bio_vec *pages;
	unsigned int count;
	size_t bytes;
	ssize_t result; /* bytes written, or an error */
};

/* The state to write one span, so that writing does not allocate. */
struct write_batch {
	struct run runs[SPAN_PAGES];
	struct bio_vec pages[SPAN_PAGES];
	atomic_t pending; /* runs that have not ended, plus one for the thread that waits */
	struct completion ended;
};

/*
 * Never fails: closing an attachment cannot report that its stores are lost because
 * some 70 KiB of memory are missing.
 */
struct write_batch *write_batch_new(void)
{
	return kvmalloc(sizeof(struct write_batch), GFP_KERNEL | __GFP_NOFAIL);
}

void write_batch_free(struct write_batch *batch)
{
	kvfree(batch);
}

/* Ignores the descriptor's present flags, which may change at any time. */
static void init_iocb(struct kiocb *iocb, struct file *file, loff_t position, int flags)
{
	init_sync_kiocb(iocb, file);
	iocb->ki_pos = position;
	iocb->ki_flags = flags;
}

static struct bio_vec bytes_of(struct folio *folio, size_t bytes)
{
	return (struct bio_vec){ .bv_page = folio_page(folio, 0), .bv_len = bytes };
}

static void read_ended(struct kiocb *iocb, long result)
{
	struct read *read = container_of(iocb, struct read, iocb);

	read->result = result;
	complete(&read->ended);
}

static void submit(struct attachment *attachment, struct read *read, int flags)
{
	struct iov_iter iter;
	ssize_t result;

	init_completion(&read->ended);
	init_iocb(&read->iocb, attachment->reader, read->position, flags);
	read->iocb.ki_complete = read_ended;
	iov_iter_bvec(&iter, ITER_DEST, read->pages, read->count, read->count * PAGE_SIZE);
	result = vfs_iocb_iter_read(attachment->reader, &read->iocb, &iter);
	if (result != -EIOCBQUEUED)
		read_ended(&read->iocb, result);
}

/*
 * Begins to fill locked folios of neighbouring pages. Does not wait for a lock of the
 * file: the faulting thread may hold it, or a lock that its owner waits for.
 */
void backing_read_begin(struct attachment *attachment, struct frame **frames, unsigned int count,
			struct read *read)
{
	unsigned int i;

	read->count = count;
	read->position = folio_pos(frames[0]->folio);
	for (i = 0; i < count; i++)
		read->pages[i] = bytes_of(frames[i]->folio, PAGE_SIZE);
	if (!S_ISREG(attachment->host->i_mode)) {
		submit(attachment, read, IOCB_DIRECT);
	} else if (attachment->reader->f_mode & FMODE_NOWAIT) {
		submit(attachment, read, IOCB_DIRECT | IOCB_NOWAIT);
	} else {
		init_completion(&read->ended);
		read->result = -EAGAIN;
		complete(&read->ended);
	}
}

static bool needs_lock(const struct read *read)
{
	return read->result == -EAGAIN || read->result == -EOPNOTSUPP;
}

/* Whether a read that has begun may take a while. */
bool backing_read_must_wait(struct read *read)
{
	return !completion_done(&read->ended) || needs_lock(read);
}

/*
 * Copies the pages from the page cache: a read into the page cache takes no lock that
 * a write of the file holds.
 */
static int read_cached(struct attachment *attachment, struct read *read)
{
	struct address_space *mapping = attachment->host->i_mapping;
	pgoff_t first = read->position >> PAGE_SHIFT;
	unsigned int i;

	for (i = 0; i < read->count; i++) {
		struct folio *folio = read_mapping_folio(mapping, first + i, attachment->reader);

		if (IS_ERR(folio))
			return PTR_ERR(folio);
		copy_highpage(read->pages[i].bv_page, folio_file_page(folio, first + i));
		folio_put(folio);
	}
	/* The pool does not count this memory. */
	invalidate_mapping_pages(mapping, first, first + read->count - 1);
	return read->count * PAGE_SIZE;
}

static bool has_page_cache(struct inode *host)
{
	return !IS_DAX(host) && host->i_mapping->a_ops->read_folio;
}

/* Whether the read got fewer bytes than the backing has. */
static bool is_short(struct attachment *attachment, struct read *read)
{
	return read->result >= 0 && read->result < read->count * PAGE_SIZE &&
	       read->position + read->result < i_size_read(attachment->host);
}

/*
 * Waits until the pages are filled; bytes behind the end of the backing are zeros.
 * Avoids waiting for a lock of the file if possible: a system call that holds it may
 * be waiting for one of these pages.
 */
int backing_read_end(struct attachment *attachment, struct read *read)
{
	unsigned int i;

	wait_for_completion_io(&read->ended);
	if (needs_lock(read) || is_short(attachment, read)) {
		if (!has_page_cache(attachment->host)) {
			submit(attachment, read, IOCB_DIRECT);
			wait_for_completion_io(&read->ended);
		} else {
			read->result = read_cached(attachment, read);
		}
	}
	if (read->result < 0)
		return read->result;
	if (is_short(attachment, read))
		return -EIO;
	for (i = read->result >> PAGE_SHIFT; i < read->count; i++) {
		size_t bytes = i == read->result >> PAGE_SHIFT ? read->result & ~PAGE_MASK : 0;

		zero_user_segment(read->pages[i].bv_page, bytes, PAGE_SIZE);
	}
	return 0;
}

static void run_ended(struct kiocb *iocb, long result)
{
	struct run *run = container_of(iocb, struct run, iocb);
	struct write_batch *batch = run->batch;

	run->result = result;
	if (atomic_dec_and_test(&batch->pending))
		complete(&batch->ended);
}

static void begin(struct run *run, struct file *file, loff_t position)
{
	struct iov_iter iter;
	ssize_t result;

	/*
	 * A direct write of the page with the end of the file would make the file longer.
	 * So this page is written at its exact length, by a buffered write, since devices
	 * may not take that length. It counts as written once the device has it, as all
	 * others do.
	 */
	init_iocb(&run->iocb, file, position, run->bytes & ~PAGE_MASK ? IOCB_DSYNC : IOCB_DIRECT);
	run->iocb.ki_complete = run_ended;
	iov_iter_bvec(&iter, ITER_SOURCE, run->pages, run->count, run->bytes);
	atomic_inc(&run->batch->pending);
	/*
	 * As the loop device does, and not vfs_iocb_iter_write: since Linux 6.8 that takes
	 * freeze protection by itself, which may wait for a thaw here, with pages locked,
	 * and which we would have to drop.
	 */
	result = file->f_op->write_iter(&run->iocb, &iter);
	if (result != -EIOCBQUEUED)
		run_ended(&run->iocb, result);
}

/* Whether a page can be added to a run. */
static bool continues(const struct run *run, pgoff_t previous, pgoff_t index, size_t bytes)
{
	return run->count && index == previous + 1 && bytes == PAGE_SIZE;
}

/*
 * Writes frames of one span, in rising order of index, with locked folios that are
 * unmapped or read-only; the caller holds freeze protection. Frames that could not be
 * written go to another list. Pages behind the end of the backing count as written:
 * there is nowhere to write them.
 */
int backing_write(struct attachment *attachment, struct list_head *frames,
		  struct write_batch *batch,
		  struct list_head *failed_frames)
{
	struct file *file = READ_ONCE(attachment->writer);
	loff_t end = i_size_read(attachment->host);
	unsigned int page = 0, runs = 0, i;
	struct frame *frame, *next;
	pgoff_t previous = 0;
	int error = 0;

	list_for_each_entry(frame, frames, batch) {
		struct folio *folio = frame->folio;
		size_t bytes = clamp_t(loff_t, end - folio_pos(folio), 0, PAGE_SIZE);
		struct run *run = &batch->runs[runs ? runs - 1 : 0];

		if (!bytes)
			break;
		if (!runs || !continues(run, previous, folio->index, bytes)) {
			run = &batch->runs[runs++];
			*run = (struct run){ .batch = batch, .pages = &batch->pages[page] };
			run->iocb.ki_pos = folio_pos(folio);
		}
		batch->pages[page++] = bytes_of(folio, bytes);
		run->count++;
		run->bytes += bytes;
		previous = folio->index;
	}
	init_completion(&batch->ended);
	atomic_set(&batch->pending, 1);
	for (i = 0; i < runs; i++)
		begin(&batch->runs[i], file, batch->runs[i].iocb.ki_pos);
	if (!atomic_dec_and_test(&batch->pending))
		wait_for_completion(&batch->ended);
	frame = list_first_entry(frames, struct frame, batch);
	for (i = 0; i < runs; i++) {
		struct run *run = &batch->runs[i];
		bool failed = run->result != run->bytes;

		if (failed)
			error = run->result < 0 ? run->result : -EIO;
		count(attachment->pool, failed ? WRITE_ERRORS : WRITES, 1);
		count(attachment->pool, PAGES_WRITTEN, failed ? 0 : run->count);
		for (page = 0; page < run->count; page++) {
			next = list_next_entry(frame, batch);
			if (failed)
				list_move_tail(&frame->batch, failed_frames);
			frame = next;
		}
	}
	return error;
}
