// SPDX-License-Identifier: GPL-2.0
/* Counters of every core, added up when somebody reads them; and what is attached. */

#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "module.h"

DEFINE_PER_CPU(struct statistics, vmio_statistics);

static const char *const names[STATISTICS] = {
	[FAULTS_MAJOR] = "faults_major",
	[FAULTS_FRESH] = "faults_fresh",
	[FAULTS_MINOR] = "faults_minor",
	[FAULTS_WRITE] = "faults_write",
	[FAULTS_WAITED] = "faults_waited",
	[FAULTS_UNLOCKED] = "faults_unlocked",
	[FAULTS_GIVEN_UP] = "faults_given_up",
	[PAGES_READ_AHEAD] = "pages_read_ahead",
	[READ_ERRORS] = "read_errors",
	[SPANS_UNMAPPED] = "spans_unmapped",
	[PAGES_EVICTED] = "pages_evicted",
	[PAGES_SPARED] = "pages_spared",
	[PAGES_PINNED] = "pages_pinned",
	[PAGES_WRITTEN] = "pages_written",
	[WRITES] = "writes",
	[WRITE_ERRORS] = "write_errors",
	[SYNCS] = "syncs",
};

static struct dentry *folder;

static int statistics_show(struct seq_file *seq, void *unused)
{
	int statistic, cpu;

	for (statistic = 0; statistic < STATISTICS; statistic++) {
		u64 sum = 0;

		for_each_possible_cpu(cpu)
			sum += READ_ONCE(per_cpu(vmio_statistics, cpu).counts[statistic]);
		seq_printf(seq, "%s %llu\n", names[statistic], sum);
	}
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
