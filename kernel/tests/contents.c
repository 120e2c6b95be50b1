// SPDX-License-Identifier: GPL-2.0
/* Reads return the stored bytes, through the mapping and past it, with memory for a quarter of the file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

#define POOL_PAGES 256
#define PAGES (4 * POOL_PAGES)

static void integrity_of(int backing)
{
	uint32_t *order = shuffled(PAGES, 1);
	void *page = new_page();
	struct mapped mapped;

	for (uint32_t i = 0; i < PAGES; i++) {
		fill(page, i, 1);
		write_directly(backing, page, i);
	}
	mapped = map(new_pool(POOL_PAGES), backing, PAGES * PAGE);
	for (uint32_t i = 0; i < PAGES; i++)
		CHECK(is_filled(mapped.bytes + order[i] * PAGE, order[i], 1));
	for (uint32_t i = 0; i < PAGES; i += 2)
		fill(mapped.bytes + order[i] * PAGE, order[i], 2);
	for (uint32_t i = 0; i < PAGES; i++)
		CHECK(is_filled(mapped.bytes + order[i] * PAGE, order[i], i % 2 ? 1 : 2));
	CHECK(msync(mapped.bytes, mapped.length, MS_SYNC) == 0);
	for (uint32_t i = 0; i < PAGES; i++) {
		read_directly(backing, page, order[i]);
		CHECK(is_filled(page, order[i], i % 2 ? 1 : 2));
	}
	unmap(&mapped);
}

void integrity(void)
{
	integrity_of(new_file(PAGES * PAGE));
}

void integrity_of_a_device(void)
{
	int device = open("/dev/nvme0n1", O_RDWR | O_DIRECT);

	CHECK(device >= 0);
	integrity_of(device);
}

#define THREADS 4
#define INCREMENTS 1000

static struct mapped counted;
static uint64_t expected[THREADS][PAGES];

static void *increment(void *argument)
{
	uintptr_t thread = (uintptr_t)argument;
	unsigned int seed = thread;

	for (int i = 0; i < INCREMENTS; i++) {
		uint32_t page = rand_r(&seed) % PAGES;

		__atomic_fetch_add((uint64_t *)(counted.bytes + page * PAGE), 1, __ATOMIC_RELAXED);
		expected[thread][page]++;
		/* Syncs from other threads, of parts and of the whole. */
		if (i % 250 == 249)
			CHECK(msync(counted.bytes + page * PAGE, i % 500 ? PAGE : (PAGES - page) * PAGE, MS_SYNC) == 0);
	}
	return NULL;
}

void counters(void)
{
	pthread_t threads[THREADS];
	uint64_t *page = new_page();

	counted = map(new_pool(POOL_PAGES), new_file(PAGES * PAGE), PAGES * PAGE);
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, increment, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK(fsync(counted.descriptor) == 0);
	for (uint32_t i = 0; i < PAGES; i++) {
		uint64_t sum = 0;

		for (int thread = 0; thread < THREADS; thread++)
			sum += expected[thread][i];
		CHECK(*(uint64_t *)(counted.bytes + i * PAGE) == sum);
		read_directly(counted.backing, page, i);
		CHECK(page[0] == sum);
	}
	unmap(&counted);
}

#define SPANS 256
#define SPAN 512
/* The pages of each span that the test touches, as far from each other as they can be. */
#define FAR_APART 3
#define SCATTERED (SPANS * FAR_APART)
/* The number of pages that a thread loads from over and over, while others evict them. */
#define GAZED_AT 8

static struct mapped scattered_over;
static uint64_t increments[SCATTERED];
static int done;

static uint64_t *scattered_page(uint32_t number)
{
	uint64_t page = number / FAR_APART * SPAN + number % FAR_APART * (SPAN / FAR_APART);

	return (uint64_t *)(scattered_over.bytes + page * PAGE);
}

static void *increment_scattered(void *argument)
{
	unsigned int seed = (uintptr_t)argument;

	for (int i = 0; i < INCREMENTS; i++) {
		uint32_t number = rand_r(&seed) % SCATTERED;
		uint64_t *page = scattered_page(number);

		CHECK(page[1] == number);
		__atomic_fetch_add(page, 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&increments[number], 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* A processor that missed the shootdown of an evicted page would see another page in its place. */
static void *gaze(void *argument)
{
	unsigned int seed = (uintptr_t)argument;

	while (!__atomic_load_n(&done, __ATOMIC_RELAXED)) {
		uint32_t first = rand_r(&seed) % (SCATTERED - GAZED_AT);

		for (int i = 0; i < 2000; i++)
			for (uint32_t number = first; number < first + GAZED_AT; number++)
				CHECK(((volatile uint64_t *)scattered_page(number))[1] == number);
	}
	return NULL;
}

/* Few enough pages of a span in memory for batched flushes, if the module was loaded with them. */
void scattered(void)
{
	void *(*const works[])(void *) = { increment_scattered, increment_scattered, gaze, gaze };
	pthread_t threads[4];
	uint64_t *page = new_page();
	size_t length = SPANS * SPAN * PAGE;

	scattered_over = map(new_pool(POOL_PAGES), new_file(length), length);
	for (uint32_t i = 0; i < SCATTERED; i++)
		scattered_page(i)[1] = i;
	for (uintptr_t i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, works[i], (void *)i) == 0);
	for (int i = 0; i < 4; i++) {
		if (i == 2)
			__atomic_store_n(&done, 1, __ATOMIC_RELAXED);
		pthread_join(threads[i], NULL);
	}
	CHECK(fsync(scattered_over.descriptor) == 0);
	for (uint32_t i = 0; i < SCATTERED; i++) {
		CHECK(scattered_page(i)[0] == increments[i] && scattered_page(i)[1] == i);
		read_directly(scattered_over.backing, page,
			      ((unsigned char *)scattered_page(i) - scattered_over.bytes) / PAGE);
		CHECK(page[0] == increments[i] && page[1] == i);
	}
	unmap(&scattered_over);
}

/* Closing a mapping writes its stores to the file, without a sync. */
void stores_without_sync(void)
{
	int backing = new_file(16 * PAGE);
	struct mapped mapped = map(new_pool(64), backing, 16 * PAGE);
	void *page = new_page();

	for (uint32_t i = 0; i < 16; i++)
		fill(mapped.bytes + i * PAGE, i, 7);
	unmap(&mapped);
	for (uint32_t i = 0; i < 16; i++) {
		read_directly(backing, page, i);
		CHECK(is_filled(page, i, 7));
	}
}

void forked(void)
{
	struct mapped mapped = map(new_pool(64), new_file(256 * PAGE), 256 * PAGE);
	int status;
	pid_t child;

	fill(mapped.bytes, 0, 1);
	child = fork();
	if (child == 0) {
		CHECK(is_filled(mapped.bytes, 0, 1));
		for (uint32_t i = 0; i < 256; i++)
			fill(mapped.bytes + i * PAGE, i, 2);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	for (uint32_t i = 0; i < 256; i++)
		CHECK(is_filled(mapped.bytes + i * PAGE, i, 2));
	unmap(&mapped);
}

/* The same file attached twice, to two pools: there is one set of pages. */
void shared_by_descriptors(void)
{
	int backing = new_file(128 * PAGE);
	struct mapped one = map(new_pool(64), backing, 128 * PAGE);
	struct mapped other = map(new_pool(64), backing, 128 * PAGE);

	for (uint32_t i = 0; i < 128; i++)
		fill(one.bytes + i * PAGE, i, 1);
	for (uint32_t i = 0; i < 128; i++)
		CHECK(is_filled(other.bytes + i * PAGE, i, 1));
	/* Each mapping sees the other's stores without a fault in between. */
	one.bytes[5] = 99;
	CHECK(other.bytes[5] == 99);
	other.bytes[5] = 98;
	CHECK(one.bytes[5] == 98);
	unmap(&one);
	CHECK(other.bytes[5] == 98);
	unmap(&other);
}

#define FEW 4
#define MANY 16

static long page_faults(void)
{
	struct rusage usage;

	CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
	return usage.ru_minflt + usage.ru_majflt;
}

/* Loads from each page. Returns the number of faults. */
static long faults_of_loads(const struct mapped *mapped, int pages)
{
	const volatile unsigned char *bytes = mapped->bytes;
	long before = page_faults();

	for (int i = 0; i < pages; i++)
		(void)bytes[i * PAGE];
	return page_faults() - before;
}

/* Stores to each page. Returns the number of faults. */
static long faults_of_stores(const struct mapped *mapped, int pages, unsigned char byte)
{
	volatile unsigned char *bytes = mapped->bytes;
	long before = page_faults();

	for (int i = 0; i < pages; i++)
		bytes[i * PAGE] = byte;
	return page_faults() - before;
}

static void check_on_file(const struct mapped *mapped, int pages, unsigned char byte)
{
	unsigned char *page = new_page();

	for (int i = 0; i < pages; i++) {
		read_directly(mapped->backing, page, i);
		CHECK(page[0] == byte);
	}
	free(page);
}

/* A few dirty pages of a span stay mapped, read-only, while they are written; many are unmapped by one shootdown. */
void loads_after_a_sync(void)
{
	struct mapped mapped = map(new_pool(64), new_file(MANY * PAGE), MANY * PAGE);
	long protected;

	faults_of_stores(&mapped, MANY, 1);
	CHECK(msync(mapped.bytes, mapped.length, MS_SYNC) == 0);
	protected = statistic("pages_protected");
	CHECK(faults_of_loads(&mapped, MANY) == MANY);

	CHECK(faults_of_stores(&mapped, FEW, 2) == FEW);
	CHECK(faults_of_stores(&mapped, FEW, 3) == 0);
	CHECK(msync(mapped.bytes, mapped.length, MS_SYNC) == 0);
	CHECK(statistic("pages_protected") == protected + FEW);
	check_on_file(&mapped, FEW, 3);
	CHECK(faults_of_loads(&mapped, MANY) == 0);
	CHECK(faults_of_stores(&mapped, FEW, 4) == FEW);
	CHECK(msync(mapped.bytes, mapped.length, MS_SYNC) == 0);
	check_on_file(&mapped, FEW, 4);

	/* Linux makes entries that look dirty writable again, without a call of page_mkwrite. */
	CHECK(mprotect(mapped.bytes, mapped.length, PROT_READ) == 0);
	CHECK(mprotect(mapped.bytes, mapped.length, PROT_READ | PROT_WRITE) == 0);
	CHECK(faults_of_stores(&mapped, FEW, 5) == FEW);
	CHECK(msync(mapped.bytes, mapped.length, MS_SYNC) == 0);
	check_on_file(&mapped, FEW, 5);
	unmap(&mapped);
}
