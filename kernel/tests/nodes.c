// SPDX-License-Identifier: GPL-2.0
/* A core that misses takes frames of its node's memory, as long as the node has some. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../uapi/vmio.h"
#include "support.h"

/* Two blocks of 2 MiB: one of each node. */
#define POOL_PAGES 1024
#define PAGES (4 * POOL_PAGES)
#define NODES 2

/* The first core of a node; -1: there is no such node. */
static int core_of(int node)
{
	char path[64];
	int core = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
	file = fopen(path, "r");
	if (!file)
		return -1;
	CHECK(fscanf(file, "%d", &core) == 1);
	fclose(file);
	return core;
}

static void run_on(int node)
{
	cpu_set_t cores;

	CPU_ZERO(&cores);
	CPU_SET(core_of(node), &cores);
	CHECK(sched_setaffinity(0, sizeof(cores), &cores) == 0);
}

/* The number of mapped pages in the memory of a node, as the kernel reports it. */
static int pages_of_node(struct mapped *mapped, int first, int count, int node)
{
	int number = 0;

	for (int i = first; i < first + count; i++) {
		void *page = mapped->bytes + i * PAGE;
		int status = -1;

		CHECK(syscall(SYS_move_pages, 0, 1, &page, NULL, &status, 0) == 0);
		CHECK(status >= 0);
		number += status == node;
	}
	return number;
}

static void touch(struct mapped *mapped, int first, int count)
{
	for (int i = first; i < first + count; i++)
		CHECK(is_filled(mapped->bytes + i * PAGE, 0, 0) == 0);
}

/* While memory is not full yet: a core takes all near frames of its node, and then those of the other. */
static void fills(int node)
{
	struct mapped mapped = map(new_pool(POOL_PAGES), new_file(PAGES * PAGE), PAGES * PAGE);
	long near = statistic("frames_near"), far = statistic("frames_far");

	run_on(node);
	touch(&mapped, 0, POOL_PAGES / 2);
	CHECK(statistic("frames_near") - near == POOL_PAGES / 2);
	CHECK(statistic("frames_far") == far);
	CHECK(pages_of_node(&mapped, 0, POOL_PAGES / 2, node) == POOL_PAGES / 2);
	touch(&mapped, POOL_PAGES / 2, POOL_PAGES / 2);
	CHECK(statistic("frames_near") - near == POOL_PAGES / 2);
	CHECK(statistic("frames_far") - far == POOL_PAGES / 2);
	CHECK(pages_of_node(&mapped, POOL_PAGES / 2, POOL_PAGES / 2, node) == 0);
	unmap(&mapped);
}

/* Frames that a core of one node gives back are near for the cores of the node whose memory they have. */
static void given_back(int giver, int taker)
{
	struct mapped mapped = map(new_pool(POOL_PAGES), new_file(PAGES * PAGE), PAGES * PAGE);
	struct vmio_byte_range all = { .length = PAGES * PAGE };
	long near, far;

	run_on(giver);
	touch(&mapped, 0, POOL_PAGES);
	CHECK(ioctl(mapped.descriptor, VMIO_EVICT, &all) == 0);
	near = statistic("frames_near");
	far = statistic("frames_far");
	run_on(taker);
	touch(&mapped, POOL_PAGES, POOL_PAGES / 2);
	CHECK(statistic("frames_near") - near == POOL_PAGES / 2);
	CHECK(statistic("frames_far") == far);
	unmap(&mapped);
}

void nodes(void)
{
	if (core_of(1) < 0) {
		printf("    one node of memory: there is nothing to see\n");
		return;
	}
	for (int node = 0; node < NODES; node++)
		fills(node);
	given_back(0, 1);
	given_back(1, 0);
}
