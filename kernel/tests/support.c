// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../uapi/vmio.h"
#include "support.h"

void check(int ok, const char *what, const char *file, int line)
{
	if (ok)
		return;
	printf("%s:%d: not so: %s (errno: %s)\n", file, line, what, strerror(errno));
	fflush(stdout);
	_exit(1);
}

int new_file(size_t bytes)
{
	char name[] = "/mnt/vmio-XXXXXX";
	int file = mkostemp(name, O_DIRECT);

	CHECK(file >= 0);
	CHECK(unlink(name) == 0);
	CHECK(posix_fallocate(file, 0, bytes) == 0);
	return file;
}

int open_pool(void)
{
	int pool = open("/dev/vmio", O_RDWR | O_CLOEXEC);

	CHECK(pool >= 0);
	return pool;
}

int new_pool(size_t pages)
{
	struct vmio_reserve reserve = { .pages = pages };
	int pool = open_pool();

	CHECK(ioctl(pool, VMIO_RESERVE, &reserve) == 0);
	return pool;
}

int attach(int pool, int backing, size_t limit_pages)
{
	struct vmio_attach attach = { .fd = backing, .limit_pages = limit_pages };

	return ioctl(pool, VMIO_ATTACH, &attach);
}

struct mapped map(int pool, int backing, size_t length)
{
	struct mapped mapped = { .backing = backing, .length = length };

	mapped.descriptor = attach(pool, backing, 0);
	CHECK(mapped.descriptor >= 0);
	mapped.bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, mapped.descriptor, 0);
	CHECK(mapped.bytes != MAP_FAILED);
	return mapped;
}

void unmap(struct mapped *mapped)
{
	CHECK(munmap(mapped->bytes, mapped->length) == 0);
	CHECK(close(mapped->descriptor) == 0);
}

static uint64_t word_of(uint64_t number, uint64_t version, unsigned int i)
{
	return (number * 0x9e3779b97f4a7c15u) ^ (version << 40) ^ i;
}

void fill(void *page, uint64_t number, uint64_t version)
{
	uint64_t *words = page;

	for (unsigned int i = 0; i < PAGE / 8; i++)
		words[i] = word_of(number, version, i);
}

int is_filled(const void *page, uint64_t number, uint64_t version)
{
	const uint64_t *words = page;

	for (unsigned int i = 0; i < PAGE / 8; i++)
		if (words[i] != word_of(number, version, i))
			return 0;
	return 1;
}

void read_directly(int file, void *page, uint64_t number)
{
	CHECK(pread(file, page, PAGE, number * PAGE) == PAGE);
}

void write_directly(int file, const void *page, uint64_t number)
{
	CHECK(pwrite(file, page, PAGE, number * PAGE) == PAGE);
}

void *new_page(void)
{
	void *page = aligned_alloc(PAGE, PAGE);

	CHECK(page != NULL);
	memset(page, 0, PAGE);
	return page;
}

uint32_t *shuffled(uint32_t limit, uint32_t seed)
{
	uint32_t *order = malloc(limit * sizeof(*order));

	CHECK(order != NULL);
	for (uint32_t i = 0; i < limit; i++)
		order[i] = i;
	srandom(seed);
	for (uint32_t i = limit - 1; i > 0; i--) {
		uint32_t other = random() % (i + 1), swapped = order[i];

		order[i] = order[other];
		order[other] = swapped;
	}
	return order;
}

static sigjmp_buf before_fault;

static void on_sigbus(int number)
{
	siglongjmp(before_fault, number);
}

int faults(const volatile unsigned char *byte)
{
	struct sigaction handler = { .sa_handler = on_sigbus }, before;
	int faulted;

	sigaction(SIGBUS, &handler, &before);
	faulted = sigsetjmp(before_fault, 1);
	if (!faulted)
		(void)*byte;
	sigaction(SIGBUS, &before, NULL);
	return faulted != 0;
}

int store_faults(volatile unsigned char *byte)
{
	struct sigaction handler = { .sa_handler = on_sigbus }, before;
	int faulted;

	sigaction(SIGBUS, &handler, &before);
	faulted = sigsetjmp(before_fault, 1);
	if (!faulted)
		(*byte)++;
	sigaction(SIGBUS, &before, NULL);
	return faulted != 0;
}

long statistic(const char *wanted)
{
	FILE *file = fopen("/sys/kernel/debug/vmio/statistics", "r");
	char name[64];
	long number;

	CHECK(file != NULL);
	while (fscanf(file, "%63s %ld", name, &number) == 2) {
		if (strcmp(name, wanted) == 0) {
			fclose(file);
			return number;
		}
	}
	CHECK(!"there is such a statistic");
	return -1;
}

long major_faults(void)
{
	return statistic("faults_major");
}
