// SPDX-License-Identifier: GPL-2.0
/* Advice about pages: which to evict first, which need no read, how far to read ahead. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../uapi/vmio.h"
#include "support.h"

#define POOL_PAGES 256
#define PAGES (4 * POOL_PAGES)

static void prioritize(struct mapped *mapped, uint64_t first, uint64_t pages, uint32_t priority)
{
	struct vmio_priority request = { .offset = first * PAGE, .length = pages * PAGE, .priority = priority };

	CHECK(ioctl(mapped->descriptor, VMIO_PRIORITIZE, &request) == 0);
}

static void touch(struct mapped *mapped, int first, int end)
{
	for (int i = first; i < end; i++)
		(void)*(volatile unsigned char *)(mapped->bytes + i * PAGE);
}

/* The number of pages of a range that are not in memory. Brings them in. */
static long missing(struct mapped *mapped, int first, int end)
{
	long before = major_faults();

	touch(mapped, first, end);
	return major_faults() - before;
}

/*
 * Untouched pages of low priority numbers stay; pages of high numbers go although they are touched,
 * before those without advice.
 */
static void prioritized(size_t limit_pages)
{
	struct vmio_priority wrong = { .length = PAGE, .priority = 256 };
	struct mapped mapped = { .length = PAGES * PAGE };

	mapped.descriptor = attach(new_pool(limit_pages ? 4 * POOL_PAGES : POOL_PAGES), new_file(PAGES * PAGE), limit_pages);
	CHECK(mapped.descriptor >= 0);
	mapped.bytes = mmap(NULL, mapped.length, PROT_READ | PROT_WRITE, MAP_SHARED, mapped.descriptor, 0);
	CHECK(mapped.bytes != MAP_FAILED);
	CHECK(ioctl(mapped.descriptor, VMIO_PRIORITIZE, &wrong) < 0 && errno == EINVAL);
	/* Before they come into memory, and after. */
	prioritize(&mapped, 0, 32, 0);
	touch(&mapped, 0, 64);
	prioritize(&mapped, 32, 32, 1);
	for (int round = 0; round < 2; round++)
		touch(&mapped, 64, PAGES);
	CHECK(missing(&mapped, 0, 64) == 0);
	/*
	 * 64 pages to keep, 96 without advice, which come to be in memory together, and pages to
	 * evict first, which are touched again and again.
	 */
	while (missing(&mapped, 64, 160) != 0)
		;
	prioritize(&mapped, 512, 512, 255);
	for (int round = 0; round < 2; round++)
		touch(&mapped, 512, PAGES);
	CHECK(missing(&mapped, 0, 160) == 0);
	/* Resets their priorities: from here on they go like any other pages. */
	prioritize(&mapped, 0, PAGES, VMIO_PRIORITY_DEFAULT);
	for (int round = 0; round < 2; round++)
		touch(&mapped, 512, PAGES);
	CHECK(missing(&mapped, 0, 160) > 100);
	unmap(&mapped);
}

void priorities(void)
{
	prioritized(0);
}

void priorities_at_a_limit(void)
{
	prioritized(POOL_PAGES);
}

/* Writes its number to each page of a backing. */
static void fill_directly(int backing, void *page)
{
	for (int i = 0; i < PAGES; i++) {
		fill(page, i, 1);
		write_directly(backing, page, i);
	}
}

/* Fresh pages are not read. Once they are written, they are like any other pages. */
void fresh(void)
{
	struct vmio_byte_range some = { .offset = 100 * PAGE + 1, .length = 300 * PAGE }, all = { .length = ~0ULL };
	int backing = new_file(PAGES * PAGE);
	struct mapped mapped;
	void *page = new_page();
	long before;

	fill_directly(backing, page);
	mapped = map(new_pool(POOL_PAGES), backing, PAGES * PAGE);
	/* One of these pages is in memory: it stays as it is. */
	fill(mapped.bytes + 200 * PAGE, 200, 2);
	CHECK(ioctl(mapped.descriptor, VMIO_FRESH, &some) == 0);
	before = major_faults();
	for (int i = 101; i < 400; i++)
		if (i != 200)
			CHECK(mapped.bytes[i * PAGE] == 0 && mapped.bytes[i * PAGE + PAGE - 1] == 0);
	CHECK(is_filled(mapped.bytes + 200 * PAGE, 200, 2) && major_faults() == before);
	/* The range covers these two pages only in part: they are not fresh. */
	CHECK(is_filled(mapped.bytes + 100 * PAGE, 100, 1) && is_filled(mapped.bytes + 400 * PAGE, 400, 1));
	/* After an eviction, a page without a store is zeros again, and one with a store has its contents. */
	for (int i = 101; i < 300; i++)
		fill(mapped.bytes + i * PAGE, i, 3);
	for (int i = 400; i < PAGES; i++)
		CHECK(is_filled(mapped.bytes + i * PAGE, i, 1));
	for (int i = 101; i < 400; i++)
		CHECK(i < 300 ? is_filled(mapped.bytes + i * PAGE, i, 3) : mapped.bytes[i * PAGE] == 0);
	CHECK(fsync(mapped.descriptor) == 0);
	for (int i = 101; i < 400; i++) {
		read_directly(backing, page, i);
		CHECK(is_filled(page, i, i < 300 ? 3 : 1));
	}
	/* Longer than the file. */
	CHECK(ioctl(mapped.descriptor, VMIO_FRESH, &all) == 0);
	unmap(&mapped);
}

/* Pages in sequence come with fewer reads; others come alone. */
void read_ahead(void)
{
	uint32_t pages = 31, many = 32, *order = shuffled(PAGES / 2, 3);
	int backing = new_file(PAGES * PAGE + 100);
	struct mapped mapped;
	void *page = new_page();
	long before;

	fill_directly(backing, page);
	mapped = map(new_pool(POOL_PAGES), backing, (PAGES + 1) * PAGE);
	CHECK(missing(&mapped, 0, 128) == 128);
	CHECK(ioctl(mapped.descriptor, VMIO_READ_AHEAD, &many) < 0 && errno == EINVAL);
	CHECK(ioctl(mapped.descriptor, VMIO_READ_AHEAD, &pages) == 0);
	before = major_faults();
	for (int i = 128; i < PAGES; i++)
		CHECK(is_filled(mapped.bytes + i * PAGE, i, 1));
	/* 28 reads of the full length, and some that end at the end of a span. */
	CHECK(major_faults() - before < 40);
	CHECK(mapped.bytes[PAGES * PAGE] == 0);
	before = statistic("pages_read_ahead");
	for (int i = 0; i < 200; i++)
		CHECK(is_filled(mapped.bytes + order[i] * 2 * PAGE, order[i] * 2, 1));
	CHECK(statistic("pages_read_ahead") - before < 5 * 31);
	/* With stores and evictions in between. */
	for (int i = 0; i < PAGES; i++)
		fill(mapped.bytes + i * PAGE, i, 2);
	for (int i = 0; i < PAGES; i++)
		CHECK(is_filled(mapped.bytes + i * PAGE, i, 2));
	CHECK(fsync(mapped.descriptor) == 0);
	for (int i = 0; i < PAGES; i++) {
		read_directly(backing, page, i);
		CHECK(is_filled(page, i, 2));
	}
	unmap(&mapped);
}

/* If a page behind the missed one cannot be read, the miss still succeeds. */
void read_ahead_of_an_error(void)
{
	int device = new_device();
	struct mapped mapped = map(new_pool(64), device, 256 * PAGE);
	uint32_t pages = 31;

	CHECK(ioctl(mapped.descriptor, VMIO_READ_AHEAD, &pages) == 0);
	/* The 20th page fails. */
	set_device("0 160 linear /dev/nvme0n1 0\n160 8 error\n168 1880 linear /dev/nvme0n1 168");
	for (int i = 10; i < 40; i++)
		CHECK(faults(mapped.bytes + i * PAGE) == (i == 20));
	set_device("0 2048 linear /dev/nvme0n1 0");
	CHECK(!faults(mapped.bytes + 20 * PAGE));
	unmap(&mapped);
	remove_device(device);
}
