// SPDX-License-Identifier: GPL-2.0
/* Faults that wait for a device, or for the lock of a file, and what other threads do meanwhile. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support.h"

#define PAGES 64

static struct mapped silent;
static atomic_int over;

static void *touch(void *byte)
{
	uintptr_t was = *(volatile unsigned char *)byte;

	over = 1;
	return (void *)was;
}

/* A thread that stores to a byte. */
static void *change(void *address)
{
	*(volatile unsigned char *)address = 78;
	over = 1;
	return NULL;
}

static void *sync_all(void *unused)
{
	CHECK(fsync(silent.descriptor) == 0);
	return unused;
}

static void *start(void *(*run)(void *), void *argument)
{
	pthread_t *thread = new_page();

	CHECK(pthread_create(thread, NULL, run, argument) == 0);
	usleep(300000);
	return thread;
}

static uintptr_t end_of(pthread_t *thread)
{
	void *returned;

	CHECK(pthread_join(*thread, &returned) == 0);
	return (uintptr_t)returned;
}

/* Needs mmap_lock for writing, and takes faults. */
static void use_memory(void)
{
	for (int i = 0; i < 10; i++) {
		volatile char *memory = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		CHECK(memory != MAP_FAILED);
		for (int page = 0; page < 16; page++)
			memory[page * PAGE] = 1;
		CHECK(munmap((void *)memory, 16 * PAGE) == 0);
	}
}

/* Loads from the pages that are stored to, and from more of their span than there is memory for. */
static void *load_until_over(void *unused)
{
	while (!over) {
		for (int page = 0; page < 8 * PAGES; page++)
			(void)((volatile unsigned char *)silent.bytes)[page / 2 % 2 ? page * PAGE : page % (PAGES / 2) * PAGE];
	}
	return unused;
}

/* Evictors and faults lock pages for a moment: a sync still writes all of them. */
void sync_beside_evictions(void)
{
	int file = new_file(8 * PAGES * PAGE);
	void *page = new_page();
	pthread_t *loaders[4];

	silent = map(new_pool(2 * PAGES), file, 8 * PAGES * PAGE);
	over = 0;
	for (int i = 0; i < 4; i++)
		loaders[i] = start(load_until_over, NULL);
	for (uint64_t version = 1; version < 150; version++) {
		for (uint64_t number = 0; number < PAGES / 2; number++)
			fill(silent.bytes + number * PAGE, number, version);
		CHECK(fsync(silent.descriptor) == 0);
		for (uint64_t number = 0; number < PAGES / 2; number++) {
			read_directly(file, page, number);
			CHECK(is_filled(page, number, version));
		}
	}
	over = 1;
	for (int i = 0; i < 4; i++)
		end_of(loaders[i]);
	unmap(&silent);
	close(file);
}

/* While one thread waits for a read of a page, and another to store to a page under write-back, others can map memory. */
void mmap_beside_waiting_faults(void)
{
	int device = new_device();
	pthread_t *reader, *writer, *syncer;

	silent = map(new_pool(128), device, PAGES * PAGE);
	fill(silent.bytes + PAGE, 1, 1);
	CHECK(fsync(silent.descriptor) == 0);
	silent.bytes[PAGE] = 77;
	suspend_device();
	syncer = start(sync_all, NULL);
	reader = start(touch, silent.bytes + 9 * PAGE);
	/* Loads of that page do not wait. */
	CHECK(silent.bytes[PAGE] == 77);
	writer = start(change, silent.bytes + PAGE);
	use_memory();
	CHECK(!over);
	resume_device();
	end_of(reader);
	end_of(writer);
	end_of(syncer);
	CHECK(silent.bytes[PAGE] == 78);
	unmap(&silent);
	remove_device(device);
}

/* Others unmap the page that a thread waits for, and close the mapping. */
void unmapped_beside_a_waiting_fault(void)
{
	int device = new_device();
	pthread_t *reader;

	silent = map(new_pool(128), device, PAGES * PAGE);
	suspend_device();
	reader = start(touch, silent.bytes + 9 * PAGE);
	/* The fault will find this mapping in its place. */
	CHECK(mmap(silent.bytes, silent.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
	      silent.bytes);
	silent.bytes[9 * PAGE] = 55;
	CHECK(close(silent.descriptor) == 0);
	CHECK(!over);
	resume_device();
	CHECK(end_of(reader) == 55);
	CHECK(munmap(silent.bytes, silent.length) == 0);
	remove_device(device);
}

static int written_to;

static void *write_from_silent(void *unused)
{
	CHECK(pwrite(written_to, silent.bytes + 3 * PAGE, PAGE, 0) == PAGE);
	return unused;
}

/*
 * A write of a file holds the file's lock and waits for its source. Meanwhile another page of the
 * file is missed, and a thread maps memory.
 */
void write_that_waits_for_its_source(void)
{
	int device = new_device();
	struct mapped mapped = map(new_pool(64), new_file(PAGES * PAGE), PAGES * PAGE);
	pthread_t *writer, *reader;
	void *page = new_page();

	fill(page, 3, 1);
	write_directly(device, page, 3);
	silent = map(new_pool(64), device, PAGES * PAGE);
	written_to = mapped.backing;
	CHECK(fcntl(written_to, F_SETFL, 0) == 0);
	suspend_device();
	writer = start(write_from_silent, NULL);
	reader = start(touch, mapped.bytes + 20 * PAGE);
	use_memory();
	resume_device();
	end_of(writer);
	end_of(reader);
	CHECK(is_filled(mapped.bytes, 3, 1));
	unmap(&mapped);
	unmap(&silent);
	remove_device(device);
}

/* write(2), buffered and direct, to a file from a mapping of itself: it holds the file's lock when it misses. */
void copies_within_a_file(void)
{
	struct mapped mapped = map(new_pool(64), new_file(256 * PAGE), 256 * PAGE);
	void *page = new_page();

	for (int direct = 0; direct < 2; direct++) {
		CHECK(fcntl(mapped.backing, F_SETFL, direct ? O_DIRECT : 0) == 0);
		for (int i = 0; i < 128; i++)
			fill(mapped.bytes + i * PAGE, i, direct);
		CHECK(fsync(mapped.descriptor) == 0);
		/* Evicts nearly all of the first half. Its pages in memory are clean. */
		for (int i = 128; i < 256; i++)
			CHECK(!faults(mapped.bytes + i * PAGE));
		for (int i = 0; i < 64; i += 16)
			CHECK(pwrite(mapped.backing, mapped.bytes + i * PAGE, 16 * PAGE, (64 + i) * PAGE) == 16 * PAGE);
		/*
		 * Bytes written past the mapping show only where no earlier page is left in memory,
		 * so the test reads the file.
		 */
		for (int i = 64; i < 128; i++) {
			read_directly(mapped.backing, page, i);
			CHECK(is_filled(page, i - 64, direct));
		}
	}
	unmap(&mapped);
}
