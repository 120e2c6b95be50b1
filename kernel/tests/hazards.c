// SPDX-License-Identifier: GPL-2.0
/* System calls into a mapping, and pages that others hold. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "support.h"

/* Reads and writes of other files, into and from memory that is a mapping: buffered and direct. */
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
	/* They are the pages themselves: a store is seen through the pipe. */
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
