// SPDX-License-Identifier: GPL-2.0
/* A file system that is frozen and thawed (fsfreeze) beside dirty mapped pages of one of its files. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

#define POOL_PAGES 64
#define PAGES (4 * POOL_PAGES)

static int open_file_system(void)
{
	int file_system = open("/mnt", O_RDONLY);

	CHECK(file_system >= 0);
	return file_system;
}

/* A sync waits for the thaw. Meanwhile pages in memory are usable, and misses succeed. */
void frozen_file_system(void)
{
	struct mapped mapped = map(new_pool(POOL_PAGES), new_file(PAGES * PAGE), PAGES * PAGE);
	int status, file_system = open_file_system();
	void *page = new_page();
	pid_t child;

	for (int i = 0; i < PAGES; i++)
		fill(mapped.bytes + i * PAGE, i, 1);
	/* The write-back that these stores have begun must end, or this waits for ever. */
	CHECK(fsync(mapped.descriptor) == 0);
	for (int i = 0; i < 16; i++)
		mapped.bytes[i * PAGE]++;
	CHECK(ioctl(file_system, FIFREEZE, 0) == 0);
	child = fork();
	if (child == 0)
		_exit(fsync(mapped.descriptor) != 0);
	usleep(300000);
	for (int i = 0; i < 16; i++)
		mapped.bytes[i * PAGE]++;
	for (int i = 16; i < PAGES; i++)
		CHECK(is_filled(mapped.bytes + i * PAGE, i, 1));
	/* The sync still waits. */
	CHECK(waitpid(child, &status, WNOHANG) == 0);
	CHECK(ioctl(file_system, FITHAW, 0) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(fsync(mapped.descriptor) == 0);
	for (int i = 0; i < PAGES; i++) {
		read_directly(mapped.backing, page, i);
		CHECK(memcmp(page, mapped.bytes + i * PAGE, PAGE) == 0);
	}
	unmap(&mapped);
}

static struct mapped stored_to;
static atomic_int enough;

static void *store_and_sync(void *unused)
{
	for (unsigned int i = 0; !enough; i++) {
		stored_to.bytes[i % PAGES * PAGE]++;
		if (i % 100 == 0)
			CHECK(fsync(stored_to.descriptor) == 0);
	}
	return unused;
}

/* Freezes and thaws do not wait for ever while pages are dirtied, evicted and synced. */
void frozen_and_thawed(void)
{
	int file_system = open_file_system();
	pthread_t threads[2];

	stored_to = map(new_pool(POOL_PAGES), new_file(PAGES * PAGE), PAGES * PAGE);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, store_and_sync, NULL) == 0);
	for (int round = 0; round < 10; round++) {
		usleep(20000);
		CHECK(ioctl(file_system, FIFREEZE, 0) == 0);
		usleep(20000);
		CHECK(ioctl(file_system, FITHAW, 0) == 0);
	}
	enough = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	CHECK(fsync(stored_to.descriptor) == 0);
	unmap(&stored_to);
}
