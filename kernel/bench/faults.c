// SPDX-License-Identifier: GPL-2.0
/*
 * Measures a random access when memory holds a quarter of the data:
 * faults vmio|mmap|library read|write DEVICE PAGES POOL-PAGES TOUCHES THREADS
 * prints the threads, the touches of all of them, major and minor faults, and nanoseconds.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "../uapi/vmio.h"
#include "library.h"

#define PAGE 4096UL

#define THREADS_MAX 64

static volatile unsigned char *bytes;
static uint64_t pages;
static int store;

/* The touches of a thread. */
struct share {
	pthread_t thread;
	uint64_t random;
	uint64_t touches;
};

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	return *state ^= *state << 17;
}

static void *touch(void *argument)
{
	struct share *share = argument;

	for (uint64_t i = 0; i < share->touches; i++) {
		volatile unsigned char *byte = bytes + next_random(&share->random) % pages * PAGE;

		if (store)
			*byte = i;
		else
			(void)*byte;
	}
	return NULL;
}

static void touch_by(struct share *shares, unsigned int threads, uint64_t touches)
{
	for (unsigned int i = 0; i < threads; i++) {
		shares[i].touches = touches / threads;
		if (pthread_create(&shares[i].thread, NULL, touch, &shares[i]))
			errx(1, "no thread");
	}
	for (unsigned int i = 0; i < threads; i++)
		pthread_join(shares[i].thread, NULL);
}

/* A mark for tests/vm/qemu/instructions.c, which counts between two of them; elsewhere it does nothing. */
static void mark(void)
{
	__asm__ volatile("xchg %%bx, %%bx" ::: "memory");
}

static volatile unsigned char *map_by_kernel(const char *path, int ours, uint64_t pool_pages)
{
	int file = open(path, O_RDWR | (ours ? O_DIRECT : 0));
	void *mapped;

	if (file < 0)
		err(1, "%s", path);
	if (ours) {
		struct vmio_reserve reserve = { .pages = pool_pages };
		struct vmio_attach attach = { .fd = file };
		int pool = open("/dev/vmio", O_RDWR);

		if (pool < 0 || ioctl(pool, VMIO_RESERVE, &reserve))
			err(1, "/dev/vmio");
		file = ioctl(pool, VMIO_ATTACH, &attach);
		if (file < 0)
			err(1, "attaching %s", path);
	}
	mapped = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (mapped == MAP_FAILED)
		err(1, "mmap");
	if (!ours && madvise(mapped, pages * PAGE, MADV_RANDOM))
		err(1, "madvise");
	return mapped;
}

int main(int count, char **arguments)
{
	struct rusage before, after;
	struct timespec start, end;
	struct share shares[THREADS_MAX];
	uint64_t pool_pages, touches;
	unsigned int threads;
	int ours;

	if (count != 8)
		errx(2, "usage: faults vmio|mmap|library read|write DEVICE PAGES POOL-PAGES TOUCHES THREADS");
	ours = strcmp(arguments[1], "vmio") == 0;
	store = strcmp(arguments[2], "write") == 0;
	pages = strtoull(arguments[4], NULL, 10);
	pool_pages = strtoull(arguments[5], NULL, 10);
	touches = strtoull(arguments[6], NULL, 10);
	threads = strtoul(arguments[7], NULL, 10);
	if (threads == 0 || threads > THREADS_MAX)
		errx(2, "1 to %d threads", THREADS_MAX);
	for (unsigned int i = 0; i < threads; i++)
		shares[i].random = 88172645463325252u * (i + 1);
	if (strcmp(arguments[1], "library") == 0)
		bytes = map_by_library(arguments[3], pool_pages * PAGE);
	else
		bytes = map_by_kernel(arguments[3], ours, pool_pages);
	/* Fills memory, and brings evictions into their steady state. */
	touch_by(shares, threads, 3 * pool_pages);
	getrusage(RUSAGE_SELF, &before);
	clock_gettime(CLOCK_MONOTONIC, &start);
	mark();
	touch_by(shares, threads, touches);
	mark();
	clock_gettime(CLOCK_MONOTONIC, &end);
	getrusage(RUSAGE_SELF, &after);
	printf("%s %s threads %u touches %lu major %ld minor %ld ns %lld\n", arguments[1], arguments[2], threads, touches,
	       after.ru_majflt - before.ru_majflt, after.ru_minflt - before.ru_minflt,
	       (end.tv_sec - start.tv_sec) * 1000000000LL + end.tv_nsec - start.tv_nsec);
	return 0;
}
