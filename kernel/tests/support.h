/* SPDX-License-Identifier: GPL-2.0 */
/* Common functions of the module's tests. A failed CHECK ends the test's process. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PAGE 4096UL

#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)

/* A backing and its mapping. */
struct mapped {
	int backing;
	int descriptor;
	unsigned char *bytes;
	size_t length;
};

void check(int ok, const char *what, const char *file, int line);

/* A new file of `bytes` zeros, opened with O_DIRECT. Nobody else finds it. */
int new_file(size_t bytes);
int open_pool(void);
/* /dev/vmio with memory for `pages` pages. */
int new_pool(size_t pages);
int attach(int pool, int backing, size_t limit_pages);
/* Attaches and maps a backing for reading and writing. */
struct mapped map(int pool, int backing, size_t length);
void unmap(struct mapped *mapped);
/* Every 8 bytes of a page differ from those of all others. */
void fill(void *page, uint64_t number, uint64_t version);
int is_filled(const void *page, uint64_t number, uint64_t version);
/* A block device of 256 pages, one at a time. While it is suspended it answers nothing. */
int new_device(void);
/* Gives the device a new table, in the format of dmsetup. */
void set_device(const char *table);
void suspend_device(void);
void resume_device(void);
void remove_device(int device);
/* Read and write past all caches. */
void read_directly(int file, void *page, uint64_t number);
void write_directly(int file, const void *page, uint64_t number);
void *new_page(void);
/* The numbers below a limit, in an order that follows from a seed. */
uint32_t *shuffled(uint32_t limit, uint32_t seed);
/* Whether touching a byte raises SIGBUS. */
int faults(const volatile unsigned char *byte);
/* Whether a store to a byte raises SIGBUS. It stores the old value plus one. */
int store_faults(volatile unsigned char *byte);
/* The present value of one of the module's counters. */
long statistic(const char *wanted);
/* The misses so far. Linux's major faults would also count faults that waited for a page in memory. */
long major_faults(void);

void integrity(void);
void integrity_of_a_device(void);
void counters(void);
void scattered(void);
void stores_without_sync(void);
void loads_after_a_sync(void);
void forked(void);
void shared_by_descriptors(void);
void beyond_the_end(void);
void cut_off(void);
void partial_last_page(void);
void system_calls(void);
void pinned_pages(void);
void larger_than_the_pool(void);
void larger_than_the_limit(void);
void all_held(void);
void limited(void);
void refused(void);
void grown_and_shrunk(void);
void resized_in_use(void);
void nodes(void);
void priorities(void);
void fresh(void);
void read_ahead(void);
void read_ahead_of_an_error(void);
void priorities_at_a_limit(void);
void residence(void);
void kept(void);
void failing_device(void);
void failing_beside_healthy(void);
void failing_for_a_while(void);
void silent_beside_healthy(void);
void sync_beside_evictions(void);
void mmap_beside_waiting_faults(void);
void unmapped_beside_a_waiting_fault(void);
void write_that_waits_for_its_source(void);
void copies_within_a_file(void);
void frozen_file_system(void);
void frozen_and_thawed(void);
void verify(void);
void poisoned(void);
void verify_under_pressure(void);
void verify_refused(void);
void killed(void);

#endif
