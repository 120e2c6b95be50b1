// SPDX-License-Identifier: GPL-2.0
/* Pools that grow and shrink while they are in use. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "../uapi/vmio.h"
#include "support.h"

#define PAGES 1024

static int resize(int pool, uint64_t pages)
{
	struct vmio_reserve request = { .pages = pages };

	return ioctl(pool, VMIO_RESIZE, &request);
}

/* Misses of a second round over some pages. */
static long missing_of(struct mapped *mapped, int pages)
{
	long before = 0;

	for (int round = 0; round < 2; round++) {
		before = major_faults();
		for (int i = 0; i < pages; i++)
			CHECK(is_filled(mapped->bytes + i * PAGE, i, 1));
	}
	return major_faults() - before;
}

void grown_and_shrunk(void)
{
	int pool = new_pool(64), other = open_pool();
	struct vmio_reserve rest = { .pages = 256 * 256 - 700 };
	struct mapped mapped = map(pool, new_file(PAGES * PAGE), PAGES * PAGE);

	for (int i = 0; i < PAGES; i++)
		fill(mapped.bytes + i * PAGE, i, 1);
	/* Pages in memory stay there. */
	CHECK(resize(pool, 700) == 0);
	CHECK(missing_of(&mapped, 600) == 0);
	/* The module may take 256 MiB (limit_mib=256): all of it is taken, and a larger size is refused. */
	CHECK(ioctl(other, VMIO_RESERVE, &rest) == 0);
	CHECK(resize(pool, 701) < 0 && errno == ENOMEM);
	CHECK(resize(pool, 63) < 0 && errno == EINVAL);
	CHECK(resize(pool, 100) == 0);
	CHECK(missing_of(&mapped, 600) >= 500);
	CHECK(resize(other, rest.pages + 500) == 0);
	close(other);
	/* With all pages dirty, and with frames from before. */
	CHECK(resize(pool, 1100) == 0);
	for (int i = 0; i < PAGES; i++)
		fill(mapped.bytes + i * PAGE, i, 1);
	CHECK(resize(pool, 64) == 0);
	CHECK(missing_of(&mapped, PAGES) >= PAGES - 64);
	unmap(&mapped);
}

static struct mapped used;
static atomic_int enough;

static void *use(void *argument)
{
	unsigned int seed = (uintptr_t)argument;

	while (!enough) {
		uint32_t page = rand_r(&seed) % PAGES;

		__atomic_fetch_add((uint64_t *)(used.bytes + page * PAGE), 1, __ATOMIC_RELAXED);
		__atomic_fetch_add((uint64_t *)(used.bytes + PAGES * PAGE), 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Threads count while the pool changes its size: no count is lost. */
void resized_in_use(void)
{
	int pool = new_pool(64);
	pthread_t threads[3];
	uint64_t sum = 0;

	used = map(pool, new_file((PAGES + 1) * PAGE), (PAGES + 1) * PAGE);
	for (uintptr_t i = 0; i < 3; i++)
		CHECK(pthread_create(&threads[i], NULL, use, (void *)(i + 1)) == 0);
	for (int round = 0; round < 10; round++) {
		CHECK(resize(pool, 900) == 0);
		usleep(20000);
		CHECK(resize(pool, 64 + round * 10) == 0);
	}
	enough = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < PAGES; i++)
		sum += *(uint64_t *)(used.bytes + i * PAGE);
	CHECK(sum == *(uint64_t *)(used.bytes + PAGES * PAGE) && sum > 0);
	unmap(&used);
}
