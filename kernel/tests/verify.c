// SPDX-License-Identifier: GPL-2.0
/* Pages that no process sees before they are admitted. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../uapi/vmio.h"
#include "support.h"

#define POOL_PAGES 64
#define PAGES (8 * POOL_PAGES)

/* A file whose pages are filled, in version 1, and its mapping. */
static struct mapped map_verified(int pool)
{
	struct mapped mapped = { .backing = new_file(PAGES * PAGE), .length = PAGES * PAGE };
	struct vmio_attach request = { .fd = mapped.backing, .flags = VMIO_ATTACH_VERIFY };
	void *page = new_page();

	for (int i = 0; i < PAGES; i++) {
		fill(page, i, 1);
		write_directly(mapped.backing, page, i);
	}
	free(page);
	mapped.descriptor = ioctl(pool, VMIO_ATTACH, &request);
	CHECK(mapped.descriptor >= 0);
	mapped.bytes = mmap(NULL, mapped.length, PROT_READ | PROT_WRITE, MAP_SHARED,
			    mapped.descriptor, 0);
	CHECK(mapped.bytes != MAP_FAILED);
	return mapped;
}

/* Inspects a page. Returns the number of its arrival; 0 if it is admitted. */
static uint64_t look_at(struct mapped *mapped, uint64_t number, void *page)
{
	struct vmio_inspect request = { .offset = number * PAGE, .contents = (uintptr_t)page };

	CHECK(ioctl(mapped->descriptor, VMIO_INSPECT, &request) == 0);
	return request.arrival;
}

/* Admits an arrival of a page. Returns whether it still was the present one. */
static int admit(struct mapped *mapped, uint64_t number, uint64_t arrival)
{
	struct vmio_admit request = { .offset = number * PAGE, .arrival = arrival };
	int admitted = ioctl(mapped->descriptor, VMIO_ADMIT, &request) == 0;

	CHECK(admitted || errno == EAGAIN);
	return admitted;
}

static void poison(struct mapped *mapped, uint64_t number)
{
	struct vmio_poison request = { .offset = number * PAGE, .pattern = "!poison" };

	CHECK(ioctl(mapped->descriptor, VMIO_POISON, &request) == 0);
}

static int is_poison(const unsigned char *page)
{
	for (size_t i = 0; i < PAGE; i += 8)
		if (memcmp(page + i, "!poison", 8))
			return 0;
	return 1;
}

static void of_page(struct mapped *mapped, unsigned long request, uint64_t number)
{
	struct vmio_byte_range range = { .offset = number * PAGE, .length = PAGE };

	CHECK(ioctl(mapped->descriptor, request, &range) == 0);
}

void verify(void)
{
	int pool = new_pool(POOL_PAGES);
	struct mapped mapped = map_verified(pool);
	unsigned char *page = new_page(), *third = mapped.bytes + 3 * PAGE;
	uint64_t arrival, later;
	int pipes[2];

	CHECK(pipe(pipes) == 0);
	CHECK(faults(third) && store_faults(third));
	CHECK(write(pipes[1], third, 8) == -1 && errno == EFAULT);
	arrival = look_at(&mapped, 3, page);
	CHECK(arrival && is_filled(page, 3, 1) && faults(third));
	CHECK(!admit(&mapped, 3, arrival + 1) && !admit(&mapped, 3, 0) && !admit(&mapped, 4, 1));
	CHECK(faults(third));
	CHECK(look_at(&mapped, 3, page) == arrival);
	CHECK(admit(&mapped, 3, arrival) && !admit(&mapped, 3, arrival));
	CHECK(is_filled(third, 3, 1) && look_at(&mapped, 3, page) == 0);
	CHECK(write(pipes[1], third, 8) == 8);
	/* A store needs no verification, and is written like any other. */
	fill(third, 3, 2);
	CHECK(msync(third, PAGE, MS_SYNC) == 0);
	read_directly(mapped.backing, page, 3);
	CHECK(is_filled(page, 3, 2));
	/* After an eviction the page arrives anew. */
	of_page(&mapped, VMIO_EVICT, 3);
	CHECK(faults(third));
	arrival = look_at(&mapped, 3, page);
	of_page(&mapped, VMIO_EVICT, 3);
	CHECK(!admit(&mapped, 3, arrival) && faults(third));
	later = look_at(&mapped, 3, page);
	CHECK(later && later != arrival && is_filled(page, 3, 2));
	CHECK(!admit(&mapped, 3, arrival) && faults(third));
	CHECK(admit(&mapped, 3, later) && is_filled(third, 3, 2));
	/* A fresh page has no contents to verify, even if it arrived before. */
	arrival = look_at(&mapped, 8, page);
	of_page(&mapped, VMIO_FRESH, 8);
	CHECK(!store_faults(mapped.bytes + 8 * PAGE) && mapped.bytes[8 * PAGE] == 1);
	CHECK(!admit(&mapped, 8, arrival));
	of_page(&mapped, VMIO_FRESH, 9);
	CHECK(!faults(mapped.bytes + 9 * PAGE) && mapped.bytes[9 * PAGE] == 0);
	free(page);
}

void poisoned(void)
{
	int pool = new_pool(POOL_PAGES);
	struct mapped mapped = map_verified(pool);
	unsigned char *page = new_page(), *third = mapped.bytes + 3 * PAGE;
	struct vmio_pin pin = { .length = PAGE };
	uint64_t arrival;

	/* A page that was not read, and one that was inspected. */
	arrival = look_at(&mapped, 4, page);
	for (uint64_t number = 3; number < 5; number++) {
		poison(&mapped, number);
		CHECK(is_poison(mapped.bytes + number * PAGE));
		CHECK(store_faults(mapped.bytes + number * PAGE));
		CHECK(is_poison(mapped.bytes + number * PAGE));
	}
	CHECK(!admit(&mapped, 4, arrival));
	CHECK(store_faults(mapped.bytes + 4 * PAGE));
	/* A sync does not write poison, and an eviction drops it like any other page. */
	CHECK(fsync(mapped.descriptor) == 0);
	read_directly(mapped.backing, page, 3);
	CHECK(is_filled(page, 3, 1));
	of_page(&mapped, VMIO_EVICT, 4);
	CHECK(faults(mapped.bytes + 4 * PAGE));
	/* An inspection reads a poisoned page again. */
	arrival = look_at(&mapped, 3, page);
	CHECK(arrival && is_filled(page, 3, 1) && faults(third));
	CHECK(admit(&mapped, 3, arrival));
	fill(third, 3, 2);
	poison(&mapped, 3);
	CHECK(is_filled(third, 3, 2));
	/* A fresh page cannot be poisoned, and a poisoned page cannot be pinned. */
	of_page(&mapped, VMIO_FRESH, 10);
	poison(&mapped, 10);
	CHECK(mapped.bytes[10 * PAGE] == 0);
	poison(&mapped, 11);
	CHECK(is_poison(mapped.bytes + 11 * PAGE));
	pin.address = (uintptr_t)mapped.bytes + 11 * PAGE;
	CHECK(ioctl(mapped.descriptor, VMIO_PIN, &pin) == -1 && errno == EFAULT);
	free(page);
}

void verify_under_pressure(void)
{
	int pool = new_pool(POOL_PAGES);
	struct mapped mapped = map_verified(pool);
	pid_t other = fork();
	unsigned char *page = new_page();
	int status;

	/* Two processes, each of which sees the pages that either has admitted. */
	CHECK(other >= 0);
	for (int round = 1; round <= 3; round++)
		for (uint64_t i = 0; i < PAGES; i++) {
			uint64_t number = other ? i : PAGES - 1 - i;

			while (faults(mapped.bytes + number * PAGE)) {
				uint64_t arrival = look_at(&mapped, number, page);

				CHECK(!arrival || is_filled(page, number, 1));
				if (arrival)
					admit(&mapped, number, arrival);
			}
		}
	if (!other)
		_exit(0);
	CHECK(waitpid(other, &status, 0) == other && status == 0);
	free(page);
}

void verify_refused(void)
{
	int pool = new_pool(POOL_PAGES), other = new_pool(POOL_PAGES), backing = new_file(PAGES * PAGE);
	struct mapped plain = map(pool, backing, PAGES * PAGE), mapped = map_verified(pool);
	void *page = new_page();
	struct vmio_attach attach = { .fd = backing, .flags = VMIO_ATTACH_VERIFY };
	struct vmio_inspect inspect = { .contents = (uintptr_t)page };
	struct vmio_poison poison = { .offset = PAGES * PAGE };
	struct vmio_admit admit = { .offset = 1 };

	CHECK(ioctl(pool, VMIO_ATTACH, &attach) == -1 && errno == EBUSY);
	/* Only one pool's owner verifies: the file cannot be attached to another, nor without the flag. */
	attach.fd = mapped.backing;
	CHECK(ioctl(other, VMIO_ATTACH, &attach) == -1 && errno == EBUSY);
	attach = (struct vmio_attach){ .fd = mapped.backing };
	CHECK(ioctl(pool, VMIO_ATTACH, &attach) == -1 && errno == EBUSY);
	attach.flags = 2;
	CHECK(ioctl(pool, VMIO_ATTACH, &attach) == -1 && errno == EINVAL);
	CHECK(ioctl(plain.descriptor, VMIO_INSPECT, &inspect) == -1 && errno == EINVAL);
	inspect.offset = PAGES * PAGE;
	CHECK(ioctl(mapped.descriptor, VMIO_INSPECT, &inspect) == -1 && errno == ENXIO);
	CHECK(ioctl(mapped.descriptor, VMIO_POISON, &poison) == -1 && errno == ENXIO);
	CHECK(ioctl(mapped.descriptor, VMIO_ADMIT, &admit) == -1 && errno == EINVAL);
	inspect = (struct vmio_inspect){ .contents = 1 };
	CHECK(ioctl(mapped.descriptor, VMIO_INSPECT, &inspect) == -1 && errno == EFAULT);
	/* The failed copy says nothing against the page. */
	CHECK(look_at(&mapped, 0, page) && is_filled(page, 0, 1));
	free(page);
}
