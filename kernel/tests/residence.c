// SPDX-License-Identifier: GPL-2.0
/* Pages in memory: counting, listing, evicting and pinning them. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../uapi/vmio.h"
#include "support.h"

#define POOL_PAGES 256
#define PAGES (4 * POOL_PAGES)

static struct vmio_usage usage_of(int descriptor)
{
	struct vmio_usage usage;

	CHECK(ioctl(descriptor, VMIO_USAGE, &usage) == 0);
	return usage;
}

static struct vmio_counts counts_of(int pool)
{
	struct vmio_counts counts;

	CHECK(ioctl(pool, VMIO_COUNTS, &counts) == 0);
	return counts;
}

static void of_range_but(struct mapped *mapped, unsigned long request, uint64_t first, uint64_t pages, int held)
{
	struct vmio_byte_range range = { .offset = first * PAGE, .length = pages * PAGE };

	CHECK(ioctl(mapped->descriptor, request, &range) == held);
}

static void of_range(struct mapped *mapped, unsigned long request, uint64_t first, uint64_t pages)
{
	of_range_but(mapped, request, first, pages, 0);
}

/* Lists the numbers of the pages in memory, at most `room` at a time. */
static long list(struct mapped *mapped, uint64_t *numbers, long room)
{
	struct vmio_resident request = { .length = mapped->length, .room = room };
	long listed = 0, more;

	do {
		request.numbers = (uintptr_t)(numbers + listed);
		more = ioctl(mapped->descriptor, VMIO_RESIDENT, &request);
		CHECK(more >= 0 && more <= room);
		listed += more;
		if (more)
			request.offset = (numbers[listed - 1] + 1) * PAGE;
		request.length = mapped->length - request.offset;
	} while (more == room);
	return listed;
}

static int pin(struct mapped *mapped, uint64_t first, uint64_t pages, uint32_t flags)
{
	struct vmio_pin request = { .address = (uintptr_t)mapped->bytes + first * PAGE, .length = pages * PAGE, .flags = flags };

	return ioctl(mapped->descriptor, VMIO_PIN, &request);
}

void residence(void)
{
	int backing = new_file(PAGES * PAGE), pool = new_pool(POOL_PAGES);
	struct mapped mapped = map(pool, backing, PAGES * PAGE);
	uint64_t numbers[PAGES];
	uint32_t version = 0;
	void *page = new_page();
	int other = new_pool(64);
	struct vmio_counts counts;
	struct vmio_usage usage;

	CHECK(ioctl(pool, VMIO_VERSION, &version) == 0 && version == VMIO_ABI);
	CHECK(usage_of(pool).pages == POOL_PAGES && usage_of(pool).resident == 0);
	CHECK(counts_of(pool).loads_missed == 0 && counts_of(pool).stores_missed == 0);
	/* Touches pages of several spans, with a store to every second one. */
	for (int i = 0; i < PAGES; i += 17)
		if (i % 2)
			fill(mapped.bytes + i * PAGE, i, 1);
		else
			CHECK(mapped.bytes[i * PAGE] == 0);
	counts = counts_of(pool);
	CHECK(counts.loads_missed == 31 && counts.stores_missed == 30 && !counts.fresh);
	CHECK(counts.reads == 61 && counts.pages_read == 61 && counts.made_writable == 30);
	CHECK(!counts.found && !counts.pages_evicted && !counts.pages_written);
	/* Each pool has its own counts. */
	CHECK(counts_of(other).loads_missed == 0);
	CHECK(list(&mapped, numbers, 7) == 61);
	for (int i = 0; i < 61; i++)
		CHECK(numbers[i] == 17 * (uint64_t)i);
	usage = usage_of(mapped.descriptor);
	CHECK(usage.resident == 61 && usage.dirty == 30 && usage.first_dirty == 17 && !usage.flush_failed);
	/* A discarded page does not reach the backing. */
	of_range(&mapped, VMIO_DISCARD, 17, 1);
	read_directly(backing, page, 17);
	CHECK(((char *)page)[0] == 0 && mapped.bytes[17 * PAGE] == 0);
	/* Bytes written past the mapping show after a discard, fresh or not. */
	fill(page, 600, 3);
	write_directly(backing, page, 600);
	of_range(&mapped, VMIO_FRESH, 599, 3);
	CHECK(!is_filled(mapped.bytes + 600 * PAGE, 600, 3) && mapped.bytes[601 * PAGE] == 0);
	of_range(&mapped, VMIO_DISCARD, 600, 2);
	CHECK(is_filled(mapped.bytes + 600 * PAGE, 600, 3));
	of_range(&mapped, VMIO_DISCARD, 599, 3);
	/* An eviction writes all stores to the backing. */
	of_range(&mapped, VMIO_EVICT, 0, PAGES / 2);
	CHECK(list(&mapped, numbers, PAGES) == 30 && numbers[0] == 17 * 31);
	of_range(&mapped, VMIO_EVICT, 0, PAGES);
	usage = usage_of(pool);
	CHECK(usage.resident == 0 && usage.dirty == 0);
	for (int i = 51; i < PAGES; i += 34) {
		read_directly(backing, page, i);
		CHECK(is_filled(page, i, 1) && is_filled(mapped.bytes + i * PAGE, i, 1));
	}
	unmap(&mapped);
}

/* Pins keep pages in memory whatever comes and goes beside them, even after munmap, but they take only their share. */
void kept(void)
{
	int pool = new_pool(POOL_PAGES), source = new_file(4 * PAGE), backing = new_file(PAGES * PAGE), pinned, other;
	struct mapped mapped = map(pool, backing, PAGES * PAGE);
	struct vmio_reserve less = { .pages = POOL_PAGES / 2 };
	uint64_t numbers[PAGES];
	void *page = new_page();

	for (int i = 0; i < 4; i++) {
		fill(page, i, 9);
		write_directly(source, page, i);
	}
	CHECK(pin(&mapped, 0, 0, 0) < 0 && errno == EINVAL);
	CHECK(pin(&mapped, 0, 1, 2) < 0 && errno == EINVAL);
	CHECK(pin(&mapped, 0, POOL_PAGES / 2 + 1, 0) < 0 && errno == ENOSPC);
	/* Behind the mapping is nothing, or other memory: that depends on the kernel. */
	CHECK(pin(&mapped, PAGES - 1, 2, 0) < 0 && (errno == EFAULT || errno == EINVAL));
	CHECK(usage_of(pool).pinned == 0);
	pinned = pin(&mapped, 100, POOL_PAGES / 2, VMIO_PIN_WRITE);
	CHECK(pinned >= 0 && usage_of(pool).pinned == POOL_PAGES / 2);
	CHECK(pin(&mapped, 100, 1, 0) < 0 && errno == ENOSPC);
	CHECK(ioctl(pool, VMIO_RESIZE, &less) < 0 && errno == EBUSY);
	for (int round = 0; round < 2; round++) {
		for (int i = POOL_PAGES; i < PAGES; i++)
			fill(mapped.bytes + i * PAGE, i, round);
		of_range_but(&mapped, VMIO_EVICT, 0, PAGES, POOL_PAGES / 2);
		CHECK(list(&mapped, numbers, PAGES) == POOL_PAGES / 2 && numbers[0] == 100);
	}
	/* A device stores to pinned pages, without a fault. */
	CHECK(pread(source, mapped.bytes + 100 * PAGE, 4 * PAGE, 0) == 4 * PAGE);
	CHECK(fsync(mapped.descriptor) == 0);
	for (int i = 0; i < 4; i++) {
		read_directly(backing, page, 100 + i);
		CHECK(is_filled(page, i, 9));
	}
	CHECK(close(pinned) == 0 && usage_of(pool).pinned == 0);
	CHECK(ioctl(pool, VMIO_RESIZE, &less) == 0);
	/* Memory outside the mapping. */
	other = pin(&(struct mapped){ .descriptor = mapped.descriptor, .bytes = page }, 0, 1, 0);
	CHECK(other < 0 && errno == EINVAL);
	pinned = pin(&mapped, 0, 4, 0);
	CHECK(pinned >= 0);
	unmap(&mapped);
	CHECK(usage_of(pool).resident >= 4);
	CHECK(close(pinned) == 0);
	CHECK(usage_of(pool).resident == 0);
}
