// SPDX-License-Identifier: GPL-2.0
/*
 * What a random access costs when memory holds a quarter of the data:
 * faults vmio|mmap|library read|write DEVICE PAGES POOL-PAGES TOUCHES THREADS
 * prints threads, touches of all of them, major and minor faults, and nanoseconds.
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
static int profiled;

/* What a thread touches. */
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

/*
 * For a profiler whose clock counts instructions: each touch takes about as many, and so its samples
 * would keep step with them. It leaves out what is in here.
 */
static __attribute__((noinline)) void dawdle(uint64_t rounds)
{
	while (rounds--)
		__asm__ volatile("");
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
		if (profiled)
			dawdle(next_random(&share->random) >> 51);
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

/*
 * Tells `perf record --control`, where the environment names its pipes, whether to look on, and
 * waits until it does.
 */
static void tell_profiler(const char *command)
{
	const char *names[] = { getenv("PERF_CONTROL"), getenv("PERF_ANSWERS") };
	char answer[8];
	int pipes[2];

	profiled = names[0] && names[1];
	if (!profiled)
		return;
	for (int i = 0; i < 2; i++) {
		pipes[i] = open(names[i], O_RDWR | O_CLOEXEC);
		if (pipes[i] < 0)
			err(1, "%s", names[i]);
	}
	if (write(pipes[0], command, strlen(command)) < 0 || read(pipes[1], answer, sizeof(answer)) < 0)
		err(1, "perf");
	close(pipes[0]);
	close(pipes[1]);
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
	/* Until memory is full, and what goes is what usually goes. */
	touch_by(shares, threads, 3 * pool_pages);
	tell_profiler("enable\n");
	getrusage(RUSAGE_SELF, &before);
	clock_gettime(CLOCK_MONOTONIC, &start);
	touch_by(shares, threads, touches);
	clock_gettime(CLOCK_MONOTONIC, &end);
	getrusage(RUSAGE_SELF, &after);
	tell_profiler("disable\n");
	printf("%s %s threads %u touches %lu major %ld minor %ld ns %lld\n", arguments[1], arguments[2], threads, touches,
	       after.ru_majflt - before.ru_majflt, after.ru_minflt - before.ru_minflt,
	       (end.tv_sec - start.tv_sec) * 1000000000LL + end.tv_nsec - start.tv_nsec);
	return 0;
}
