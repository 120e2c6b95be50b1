/* SPDX-License-Identifier: GPL-2.0 */
/* The counters of a pool; vmio/statistics in debugfs has the sums over all pools since the module was loaded. */
#ifndef VMIO_STATISTICS_H
#define VMIO_STATISTICS_H

#include <linux/list.h>
#include <linux/percpu.h>
#include <linux/types.h>

enum statistic {
	FAULTS_MAJOR,
	FAULTS_FRESH,
	LOADS_MISSED,
	STORES_MISSED,
	FAULTS_MINOR,
	FAULTS_WRITE,
	FAULTS_WAITED,
	FAULTS_UNLOCKED,
	FAULTS_GIVEN_UP,
	READS,
	PAGES_READ,
	PAGES_READ_AHEAD,
	READ_ERRORS,
	SPANS_UNMAPPED,
	PAGES_PROTECTED,
	PAGES_SCATTERED,
	FLUSHES_BATCHED,
	PAGES_EVICTED,
	PAGES_SPARED,
	PAGES_PINNED,
	WRITES,
	PAGES_WRITTEN,
	WRITE_ERRORS,
	SYNCS,
	FRAMES_NEAR,
	FRAMES_FAR,
	STATISTICS,
};

/* The counters of one core. */
struct counts {
	u64 of[STATISTICS];
};

/* The counters of a pool. */
struct statistics {
	struct counts __percpu *counts;
	struct list_head others; /* those of the other pools */
};

struct vmio_counts;

int statistics_begin(struct statistics *statistics);
void statistics_end(struct statistics *statistics);
void statistics_report(const struct statistics *statistics, struct vmio_counts *report);
void statistics_init(void);
void statistics_exit(void);

#endif
