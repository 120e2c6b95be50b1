// SPDX-License-Identifier: GPL-2.0
/* Counters for each pool and core, which are summed when they are read; and the list of attachments. */

#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "module.h"
#include "uapi/vmio.h"

static LIST_HEAD(present);
/* The counts of pools that have gone. */
static struct counts former;
/* Protects both. */
static DEFINE_MUTEX(statistics_lock);

static const char *const names[STATISTICS] = {
	[FAULTS_MAJOR] = "faults_major",
	[FAULTS_FRESH] = "faults_fresh",
	[LOADS_MISSED] = "loads_missed",
	[STORES_MISSED] = "stores_missed",
	[FAULTS_MINOR] = "faults_minor",
	[FAULTS_WRITE] = "faults_write",
	[FAULTS_WAITED] = "faults_waited",
	[FAULTS_UNLOCKED] = "faults_unlocked",
	[FAULTS_GIVEN_UP] = "faults_given_up",
	[READS] = "reads",
	[PAGES_READ] = "pages_read",
	[PAGES_READ_AHEAD] = "pages_read_ahead",
	[READ_ERRORS] = "read_errors",
	[SPANS_UNMAPPED] = "spans_unmapped",
	[PAGES_PROTECTED] = "pages_protected",
	[PAGES_SCATTERED] = "pages_scattered",
	[FLUSHES_BATCHED] = "flushes_batched",
	[PAGES_EVICTED] = "pages_evicted",
	[PAGES_SPARED] = "pages_spared",
	[PAGES_PINNED] = "pages_pinned",
	[WRITES] = "writes",
	[PAGES_WRITTEN] = "pages_written",
	[WRITE_ERRORS] = "write_errors",
	[SYNCS] = "syncs",
	[FRAMES_NEAR] = "frames_near",
	[FRAMES_FAR] = "frames_far",
};

static struct dentry *folder;

static void add(const struct statistics *statistics, struct counts *sums)
{
	int statistic, cpu;

	for_each_possible_cpu(cpu) {
		const struct counts *counts = per_cpu_ptr(statistics->counts, cpu);

		for (statistic = 0; statistic < STATISTICS; statistic++)
			sums->of[statistic] += READ_ONCE(counts->of[statistic]);
	}
}

/* Sets up the counters of a pool. */
int statistics_begin(struct statistics *statistics)
{
	statistics->counts = alloc_percpu_gfp(struct counts, GFP_KERNEL_ACCOUNT);
	if (!statistics->counts)
		return -ENOMEM;
	mutex_lock(&statistics_lock);
	list_add(&statistics->others, &present);
	mutex_unlock(&statistics_lock);
	return 0;
}

/* Frees the counters of a pool that goes, or that could not be created. */
void statistics_end(struct statistics *statistics)
{
	if (!statistics->counts)
		return;
	mutex_lock(&statistics_lock);
	list_del(&statistics->others);
	add(statistics, &former);
	mutex_unlock(&statistics_lock);
	free_percpu(statistics->counts);
}

/* VMIO_COUNTS. */
void statistics_report(const struct statistics *statistics, struct vmio_counts *report)
{
	struct counts sums = {};

	add(statistics, &sums);
	*report = (struct vmio_counts) {
		.loads_missed = sums.of[LOADS_MISSED],
		.stores_missed = sums.of[STORES_MISSED],
		.fresh = sums.of[FAULTS_FRESH],
		.found = sums.of[FAULTS_MINOR],
		.made_writable = sums.of[FAULTS_WRITE],
		.reads = sums.of[READS],
		.pages_read = sums.of[PAGES_READ],
		.pages_read_ahead = sums.of[PAGES_READ_AHEAD],
		.read_errors = sums.of[READ_ERRORS],
		.spans_unmapped = sums.of[SPANS_UNMAPPED],
		.pages_evicted = sums.of[PAGES_EVICTED],
		.writes = sums.of[WRITES],
		.pages_written = sums.of[PAGES_WRITTEN],
		.write_errors = sums.of[WRITE_ERRORS],
	};
}

static int statistics_show(struct seq_file *seq, void *unused)
{
	struct statistics *statistics;
	struct counts sums;
	int statistic;

	mutex_lock(&statistics_lock);
	sums = former;
	list_for_each_entry(statistics, &present, others)
		add(statistics, &sums);
	mutex_unlock(&statistics_lock);
	for (statistic = 0; statistic < STATISTICS; statistic++)
		seq_printf(seq, "%s %llu\n", names[statistic], sums.of[statistic]);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(statistics);

static int attachments_show(struct seq_file *seq, void *unused)
{
	show_attachments(seq);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(attachments);

void statistics_init(void)
{
	folder = debugfs_create_dir("vmio", NULL);
	debugfs_create_file("attachments", 0400, folder, NULL, &attachments_fops);
	debugfs_create_file("statistics", 0444, folder, NULL, &statistics_fops);
}

void statistics_exit(void)
{
	debugfs_remove(folder);
}
