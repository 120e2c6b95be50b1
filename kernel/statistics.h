/* SPDX-License-Identifier: GPL-2.0 */
/* What is counted, for all pools together: debugfs, vmio/statistics. */
#ifndef VMIO_STATISTICS_H
#define VMIO_STATISTICS_H

#include <linux/percpu.h>
#include <linux/types.h>

enum statistic {
	FAULTS_MAJOR,
	FAULTS_FRESH,
	FAULTS_MINOR,
	FAULTS_WRITE,
	FAULTS_WAITED,
	FAULTS_UNLOCKED,
	FAULTS_GIVEN_UP,
	PAGES_READ_AHEAD,
	READ_ERRORS,
	SPANS_UNMAPPED,
	PAGES_EVICTED,
	PAGES_SPARED,
	PAGES_PINNED,
	PAGES_WRITTEN,
	WRITES,
	WRITE_ERRORS,
	SYNCS,
	STATISTICS,
};

struct statistics {
	u64 counts[STATISTICS];
};

DECLARE_PER_CPU(struct statistics, vmio_statistics);

static inline void count(enum statistic statistic, u64 number)
{
	this_cpu_add(vmio_statistics.counts[statistic], number);
}

void statistics_init(void);
void statistics_exit(void);

#endif
