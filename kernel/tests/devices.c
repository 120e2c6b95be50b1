// SPDX-License-Identifier: GPL-2.0
/* Devices that fail, or answer nothing for a while, alone and beside others. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support.h"

void set_device(const char *table)
{
	char command[256];

	snprintf(command, sizeof(command),
		 "dmsetup load vmio --table '%s' && dmsetup --noudevsync --nolockfs resume vmio", table);
	CHECK(system(command) == 0);
}

/* A device of 256 pages. */
#define ALL_WORK "0 2048 linear /dev/nvme0n1 0"
#define ALL_FAIL "0 2048 error"

int new_device(void)
{
	int device;

	CHECK(system("dmsetup --noudevsync create vmio --table '" ALL_WORK "'") == 0);
	device = open("/dev/dm-0", O_RDWR | O_DIRECT);
	CHECK(device >= 0);
	return device;
}

void remove_device(int device)
{
	close(device);
	CHECK(system("dmsetup --noudevsync remove vmio") == 0);
}

void suspend_device(void)
{
	CHECK(system("dmsetup --noudevsync --noflush --nolockfs suspend vmio") == 0);
}

void resume_device(void)
{
	CHECK(system("dmsetup --noudevsync --nolockfs resume vmio") == 0);
}

void failing_device(void)
{
	struct mapped mapped;
	int device = new_device();
	void *page = new_page();

	for (int i = 0; i < 256; i++) {
		fill(page, i, 1);
		write_directly(device, page, i);
	}
	mapped = map(new_pool(128), device, 256 * PAGE);
	set_device(ALL_FAIL);
	CHECK(faults(mapped.bytes + 10 * PAGE));
	set_device(ALL_WORK);
	CHECK(is_filled(mapped.bytes + 10 * PAGE, 10, 1));
	/* A store that cannot be written stays in memory, and every sync fails until it can. */
	fill(mapped.bytes + 10 * PAGE, 10, 2);
	fill(mapped.bytes + 12 * PAGE, 12, 2);
	set_device(ALL_FAIL);
	CHECK(msync(mapped.bytes, mapped.length, MS_SYNC) != 0);
	CHECK(msync(mapped.bytes, mapped.length, MS_SYNC) != 0);
	CHECK(is_filled(mapped.bytes + 10 * PAGE, 10, 2));
	set_device(ALL_WORK);
	CHECK(msync(mapped.bytes, mapped.length, MS_SYNC) == 0);
	read_directly(device, page, 10);
	CHECK(is_filled(page, 10, 2));
	read_directly(device, page, 12);
	CHECK(is_filled(page, 12, 2));
	for (int i = 0; i < 256; i++)
		CHECK(is_filled(mapped.bytes + i * PAGE, i, i == 10 || i == 12 ? 2 : 1));
	unmap(&mapped);
	remove_device(device);
}

/* Stores to a healthy file in the same pool, of twice the pool's size, then evicts, syncs and reads all of it. */
static void use_healthy(struct mapped *healthy, int version)
{
	for (int i = 0; i < 512; i++)
		fill(healthy->bytes + i * PAGE, i, version);
	CHECK(fsync(healthy->descriptor) == 0);
	for (int i = 0; i < 512; i++)
		CHECK(is_filled(healthy->bytes + i * PAGE, i, version));
}

/* With the whole pool or at a limit, a failing device's own stores fail and do not hang, and others do not notice. */
static void fails_beside_a_healthy_one(int device, size_t limit_pages)
{
	int pool = new_pool(256);
	struct mapped healthy = map(pool, new_file(512 * PAGE), 512 * PAGE);
	struct mapped failing = { .length = 256 * PAGE, .descriptor = attach(pool, device, limit_pages) };
	void *page = new_page();
	int refused = 0;

	failing.bytes = mmap(NULL, failing.length, PROT_READ | PROT_WRITE, MAP_SHARED, failing.descriptor, 0);
	CHECK(failing.bytes != MAP_FAILED);
	for (int i = 255; i >= 0; i--)
		fill(failing.bytes + i * PAGE, i, 3);
	CHECK(fsync(failing.descriptor) == 0);
	for (int i = 0; i < 32; i++)
		fill(failing.bytes + i * PAGE, i, 4);
	set_device(ALL_FAIL);
	for (int i = 32; i < 256; i++)
		refused += store_faults(failing.bytes + i * PAGE);
	CHECK(refused > 0);
	use_healthy(&healthy, 1);
	CHECK(fsync(failing.descriptor) != 0);
	use_healthy(&healthy, 2);
	/* Successful stores are still there. */
	for (int i = 0; i < 32; i++)
		CHECK(is_filled(failing.bytes + i * PAGE, i, 4));
	set_device(ALL_WORK);
	CHECK(fsync(failing.descriptor) == 0);
	for (int i = 0; i < 32; i++) {
		read_directly(device, page, i);
		CHECK(is_filled(page, i, 4));
	}
	unmap(&failing);
	unmap(&healthy);
}

void failing_beside_healthy(void)
{
	int device = new_device();

	fails_beside_a_healthy_one(device, 0);
	fails_beside_a_healthy_one(device, 1);
	remove_device(device);
}

/* Once a device works again, all its pages can be stored to, even if stores were refused before. */
void failing_for_a_while(void)
{
	int device = new_device();
	struct mapped mapped = map(new_pool(128), device, 256 * PAGE);

	for (int i = 0; i < 128; i++)
		CHECK(!faults(mapped.bytes + i * PAGE));
	set_device(ALL_FAIL);
	/* All pages are in memory: this many may be dirty. */
	for (int i = 0; i < 96; i++)
		CHECK(!store_faults(mapped.bytes + i * PAGE));
	CHECK(store_faults(mapped.bytes + 96 * PAGE));
	set_device(ALL_WORK);
	CHECK(fsync(mapped.descriptor) == 0);
	for (int i = 0; i < 256; i++)
		fill(mapped.bytes + i * PAGE, i, 2);
	CHECK(fsync(mapped.descriptor) == 0);
	unmap(&mapped);
	remove_device(device);
}

static struct mapped silent;
static atomic_int stored;

static void *store_to_silent(void *unused)
{
	for (int i = 0; i < 256; i++) {
		fill(silent.bytes + i * PAGE, i, 5);
		stored = i;
	}
	return unused;
}

/* A silent device delays only the threads that wait for it. */
void silent_beside_healthy(void)
{
	int device = new_device(), pool = new_pool(256);
	struct mapped healthy = map(pool, new_file(512 * PAGE), 512 * PAGE);
	pthread_t thread;

	silent = map(pool, device, 256 * PAGE);
	for (int i = 0; i < 256; i++)
		fill(silent.bytes + i * PAGE, i, 1);
	suspend_device();
	CHECK(pthread_create(&thread, NULL, store_to_silent, NULL) == 0);
	usleep(300000);
	use_healthy(&healthy, 1);
	use_healthy(&healthy, 2);
	/* The thread still waits. */
	CHECK(stored < 255);
	resume_device();
	pthread_join(thread, NULL);
	CHECK(fsync(silent.descriptor) == 0);
	for (int i = 0; i < 256; i++)
		CHECK(is_filled(silent.bytes + i * PAGE, i, 5));
	unmap(&silent);
	unmap(&healthy);
	remove_device(device);
}
