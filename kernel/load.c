// SPDX-License-Identifier: GPL-2.0
/*
 * Loads: one read of a missed page and the pages that are read ahead.
 */

#include <linux/highmem.h>
#include <linux/module.h>

#include "module.h"

/* Releases the frames from a number on, whose folios are locked. */
static void drop(struct load *load, unsigned int first)
{
	struct attachment *attachment = load->attachment;
	unsigned int i;

	for (i = first; i < load->count; i++) {
		struct frame *frame = load->frames[i];
		struct folio *folio = frame->folio;

		xa_erase(&attachment->shards[core_of(attachment, folio->index)].pages,
			 folio->index);
		frame_release(frame);
		folio_unlock(folio);
		/* Its folio may be freed from here on. */
		frame_free(attachment->pool, frame);
	}
	load->count = first;
}

static pgoff_t *stream_at(struct attachment *attachment, pgoff_t index)
{
	return &attachment->streams[(index >> SPAN_SHIFT) % STREAMS];
}

/* The number of pages to read ahead after a page, at most to the end of its span. */
static unsigned int pages_ahead(struct attachment *attachment, pgoff_t index)
{
	/*
	 * The end as it was known: checking the file may drop pages behind its end, and the
	 * missed page is locked by now.
	 */
	pgoff_t end = min(READ_ONCE(attachment->end), span_of(index) + SPAN_PAGES);

	if (!READ_ONCE(attachment->read_ahead) ||
	    READ_ONCE(*stream_at(attachment, index)) != index || index >= end)
		return 0;
	return min_t(pgoff_t, READ_ONCE(attachment->read_ahead), end - index - 1);
}

/* Adds the following pages while there are frames and the pages are not in memory. */
static void add_ahead(struct load *load, pgoff_t index, unsigned int ahead)
{
	struct attachment *attachment = load->attachment;

	while (load->count <= ahead && !fresh_is(attachment, index + load->count)) {
		struct frame *frame = frame_find(attachment);

		if (!frame)
			break;
		if (frame_assign(frame, attachment, index + load->count)) {
			frame_free(attachment->pool, frame);
			break;
		}
		/* No fault has asked for it yet. */
		frame->recent = false;
		load->frames[load->count++] = frame;
	}
}

/*
 * Begins to read a page into a free frame. EBUSY: the page is in memory, or being
 * read. Else other threads find the frame from here on, with its folio locked.
 */
int load_begin(struct load *load, struct attachment *attachment, struct frame *frame, pgoff_t index)
{
	int error = frame_assign(frame, attachment, index);

	if (error) {
		frame_free(attachment->pool, frame);
		return error;
	}
	load->attachment = attachment;
	load->frames[0] = frame;
	load->count = 1;
	/* Checked while it is locked: it may have been written a moment before. */
	load->fresh = fresh_is(attachment, index);
	if (load->fresh) {
		folio_zero_segment(frame->folio, 0, PAGE_SIZE);
		/* Zeros need no verification. */
		frame->arrival = 0;
	} else {
		add_ahead(load, index, pages_ahead(attachment, index));
	}
	WRITE_ONCE(*stream_at(attachment, index + load->count), index + load->count);
	if (!load->fresh)
		backing_read_begin(attachment, load->frames, load->count, &load->read);
	return 0;
}

/* Whether the load may take a while. */
bool load_must_wait(struct load *load)
{
	return !load->fresh && backing_read_must_wait(&load->read);
}

/*
 * Waits until the pages are read. The folio of the missed page stays locked.
 */
int load_end(struct load *load, bool by_store)
{
	int error = load->fresh ? 0 : backing_read_end(load->attachment, &load->read);
	struct pool *pool = load->attachment->pool;
	unsigned int i;

	if (error && load->count > 1) {
		/* The error may be of a page that was only read ahead. */
		drop(load, 1);
		backing_read_begin(load->attachment, load->frames, 1, &load->read);
		error = backing_read_end(load->attachment, &load->read);
	}

	if (error) {
		count(pool, READ_ERRORS, 1);
		drop(load, 0);
		return error;
	}
	for (i = 0; i < load->count; i++) {
		folio_mark_uptodate(load->frames[i]->folio);
		frame_enqueue(load->frames[i]);
		if (i)
			folio_unlock(load->frames[i]->folio);
	}
	count(pool, load->fresh ? FAULTS_FRESH : FAULTS_MAJOR, 1);
	count(pool, by_store ? STORES_MISSED : LOADS_MISSED, 1);
	if (load->fresh)
		return 0;
	count(pool, READS, 1);
	count(pool, PAGES_READ, load->count);
	count(pool, PAGES_READ_AHEAD, load->count - 1);
	return 0;
}
