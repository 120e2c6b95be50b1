// SPDX-License-Identifier: GPL-2.0
/* System calls into a mapping, and pages that others hold: some, or all. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "../uapi/vmio.h"
#include "support.h"

/* Reads and writes of other files, buffered and direct, with a mapping as their memory. */
void system_calls(void)
{
	struct mapped mapped = map(new_pool(64), new_file(256 * PAGE), 256 * PAGE);
	int other = new_file(256 * PAGE);
	void *page = new_page();

	for (int direct = 0; direct < 2; direct++) {
		CHECK(fcntl(other, F_SETFL, direct ? O_DIRECT : 0) == 0);
		for (int i = 0; i < 256; i++) {
			fill(mapped.bytes + i * PAGE, i, direct);
			CHECK(pwrite(other, mapped.bytes + i * PAGE, PAGE, i * PAGE) == PAGE);
		}
		memset(mapped.bytes, 0, 256 * PAGE);
		for (int i = 0; i < 256; i += 32)
			CHECK(pread(other, mapped.bytes + i * PAGE, 32 * PAGE, i * PAGE) == 32 * PAGE);
		CHECK(fsync(mapped.descriptor) == 0);
		for (int i = 0; i < 256; i++) {
			CHECK(is_filled(mapped.bytes + i * PAGE, i, direct));
			read_directly(mapped.backing, page, i);
			CHECK(is_filled(page, i, direct));
		}
	}
	unmap(&mapped);
}

/* Pages in a pipe are not evicted, and outlive their attachment. */
void pinned_pages(void)
{
	struct mapped mapped = map(new_pool(64), new_file(256 * PAGE), 256 * PAGE);
	struct iovec range = { .iov_base = mapped.bytes, .iov_len = 8 * PAGE };
	char *page = new_page();
	int ends[2];

	for (int i = 0; i < 256; i++)
		fill(mapped.bytes + i * PAGE, i, 1);
	CHECK(pipe(ends) == 0);
	CHECK(vmsplice(ends[1], &range, 1, 0) == (ssize_t)(8 * PAGE));
	for (int round = 2; round < 4; round++)
		for (int i = 8; i < 256; i++)
			fill(mapped.bytes + i * PAGE, i, round);
	CHECK(fsync(mapped.descriptor) == 0);
	/* The pipe has the pages themselves: a store shows through the pipe. */
	fill(mapped.bytes + 7 * PAGE, 7, 5);
	unmap(&mapped);
	for (int i = 0; i < 8; i++) {
		size_t had = 0;

		while (had < PAGE) {
			ssize_t got = read(ends[0], page + had, PAGE - had);

			CHECK(got > 0);
			had += got;
		}
		CHECK(is_filled(page, i, i == 7 ? 5 : 1));
	}
	read_directly(mapped.backing, page, 7);
	CHECK(is_filled(page, 7, 5));
}

/* The bytes that a system call reports are right, whether or not it is complete. The mapping is unchanged. */
static void check_copied(struct mapped *mapped, const char *copy, ssize_t result, uint64_t version)
{
	CHECK((result < 0 && errno == EFAULT) || (result > 0 && result % PAGE == 0 && (size_t)result <= mapped->length));
	for (size_t i = 0; (ssize_t)i < result / (ssize_t)PAGE; i++)
		CHECK(is_filled(copy + i * PAGE, i, version));
	for (size_t i = 0; i < mapped->length / PAGE; i++)
		CHECK(is_filled(mapped->bytes + i * PAGE, i, version));
}

/*
 * Transfers of twice the pages that may be in memory: a system call that wants more pages holds all
 * others, and waits for itself. It ends early, with the pages that it got.
 */
static void large_transfers(int pool, size_t limit_pages)
{
	const size_t length = 2 * 64 * PAGE;
	struct mapped mapped = { .backing = new_file(length), .length = length };
	char *buffer = aligned_alloc(PAGE, length);
	int other = new_file(length);
	struct iovec local = { .iov_base = buffer, .iov_len = length }, remote = { .iov_len = length };
	long given_up = statistic("faults_given_up");
	ssize_t result;

	CHECK(buffer != NULL);
	mapped.descriptor = attach(pool, mapped.backing, limit_pages);
	CHECK(mapped.descriptor >= 0);
	mapped.bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, mapped.descriptor, 0);
	CHECK(mapped.bytes != MAP_FAILED);
	remote.iov_base = mapped.bytes;
	for (size_t i = 0; i < length / PAGE; i++)
		fill(mapped.bytes + i * PAGE, i, 1);

	/* From the mapping to a device, and to memory. */
	result = pwrite(other, mapped.bytes, length, 0);
	for (size_t i = 0; (ssize_t)i < result / (ssize_t)PAGE; i++)
		read_directly(other, buffer + i * PAGE, i);
	check_copied(&mapped, buffer, result, 1);
	result = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
	check_copied(&mapped, buffer, result, 1);
	CHECK(statistic("faults_given_up") > given_up);

	/* Into the mapping: its pages are dirty, and stay so. */
	given_up = statistic("faults_given_up");
	for (size_t i = 0; i < length / PAGE; i++) {
		fill(buffer + i * PAGE, i, 2);
		write_directly(other, buffer + i * PAGE, i);
	}
	result = pread(other, mapped.bytes, length, 0);
	for (size_t i = result < 0 ? 0 : result / PAGE; i < length / PAGE; i++)
		fill(mapped.bytes + i * PAGE, i, 2);
	check_copied(&mapped, buffer, result, 2);
	for (size_t i = 0; i < length / PAGE; i++)
		fill(buffer + i * PAGE, i, 3);
	result = process_vm_writev(getpid(), &local, 1, &remote, 1, 0);
	for (size_t i = result < 0 ? 0 : result / PAGE; i < length / PAGE; i++)
		fill(mapped.bytes + i * PAGE, i, 3);
	check_copied(&mapped, buffer, result, 3);
	CHECK(statistic("faults_given_up") > given_up);

	CHECK(fsync(mapped.descriptor) == 0);
	for (size_t i = 0; i < length / PAGE; i++) {
		read_directly(mapped.backing, buffer, i);
		CHECK(is_filled(buffer, i, 3));
	}
	unmap(&mapped);
}

void larger_than_the_pool(void)
{
	large_transfers(new_pool(64), 0);
}

void larger_than_the_limit(void)
{
	large_transfers(new_pool(256), 64);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* A pipe holds all pages. A load waits for a while, and then gets SIGBUS; the pool does not shrink. */
void all_held(void)
{
	int pool = new_pool(128);
	struct mapped mapped = map(pool, new_file(256 * PAGE), 256 * PAGE);
	struct iovec range = { .iov_base = mapped.bytes, .iov_len = 128 * PAGE };
	struct vmio_reserve less = { .pages = 64 };
	double before;
	int ends[2];

	CHECK(pipe(ends) == 0);
	CHECK(fcntl(ends[1], F_SETPIPE_SZ, 128 * PAGE) >= (int)(128 * PAGE));
	CHECK(vmsplice(ends[1], &range, 1, 0) == (ssize_t)(128 * PAGE));
	/* Pages in memory remain usable. */
	for (int i = 0; i < 128; i++)
		CHECK(!faults(mapped.bytes + i * PAGE));
	before = seconds();
	CHECK(faults(mapped.bytes + 200 * PAGE));
	CHECK(seconds() - before > 5);
	CHECK(ioctl(pool, VMIO_RESIZE, &less) < 0 && errno == EBUSY);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
	before = seconds();
	for (int i = 0; i < 256; i++)
		fill(mapped.bytes + i * PAGE, i, 1);
	CHECK(ioctl(pool, VMIO_RESIZE, &less) == 0);
	CHECK(seconds() - before < 5);
	for (int i = 0; i < 256; i++)
		CHECK(is_filled(mapped.bytes + i * PAGE, i, 1));
	unmap(&mapped);
}
