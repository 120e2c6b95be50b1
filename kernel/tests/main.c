// SPDX-License-Identifier: GPL-2.0
/* Runs the named tests, or all, each in a process of its own, for three minutes at most. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support.h"

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "integrity", integrity },
	{ "integrity_of_a_device", integrity_of_a_device },
	{ "counters", counters },
	{ "scattered", scattered },
	{ "stores_without_sync", stores_without_sync },
	{ "loads_after_a_sync", loads_after_a_sync },
	{ "forked", forked },
	{ "shared_by_descriptors", shared_by_descriptors },
	{ "beyond_the_end", beyond_the_end },
	{ "cut_off", cut_off },
	{ "partial_last_page", partial_last_page },
	{ "system_calls", system_calls },
	{ "pinned_pages", pinned_pages },
	{ "larger_than_the_pool", larger_than_the_pool },
	{ "larger_than_the_limit", larger_than_the_limit },
	{ "all_held", all_held },
	{ "limited", limited },
	{ "refused", refused },
	{ "grown_and_shrunk", grown_and_shrunk },
	{ "resized_in_use", resized_in_use },
	{ "nodes", nodes },
	{ "priorities", priorities },
	{ "fresh", fresh },
	{ "read_ahead", read_ahead },
	{ "read_ahead_of_an_error", read_ahead_of_an_error },
	{ "priorities_at_a_limit", priorities_at_a_limit },
	{ "residence", residence },
	{ "kept", kept },
	{ "failing_device", failing_device },
	{ "failing_beside_healthy", failing_beside_healthy },
	{ "failing_for_a_while", failing_for_a_while },
	{ "silent_beside_healthy", silent_beside_healthy },
	{ "sync_beside_evictions", sync_beside_evictions },
	{ "mmap_beside_waiting_faults", mmap_beside_waiting_faults },
	{ "unmapped_beside_a_waiting_fault", unmapped_beside_a_waiting_fault },
	{ "write_that_waits_for_its_source", write_that_waits_for_its_source },
	{ "copies_within_a_file", copies_within_a_file },
	{ "frozen_file_system", frozen_file_system },
	{ "frozen_and_thawed", frozen_and_thawed },
	{ "verify", verify },
	{ "poisoned", poisoned },
	{ "verify_under_pressure", verify_under_pressure },
	{ "verify_refused", verify_refused },
	{ "killed", killed },
};

static int run(const char *name, void (*test)(void))
{
	struct timespec before, after;
	int status;
	pid_t child;

	clock_gettime(CLOCK_MONOTONIC, &before);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		alarm(180);
		test();
		_exit(0);
	}
	waitpid(child, &status, 0);
	clock_gettime(CLOCK_MONOTONIC, &after);
	printf("%-32s %5.1f s  %s\n", name,
	       (after.tv_sec - before.tv_sec) + (after.tv_nsec - before.tv_nsec) / 1e9, status ? "FAILED" : "ok");
	if (WIFSIGNALED(status))
		printf("    by signal %d: %s\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
	return status != 0;
}

static int is_test(const char *name)
{
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (strcmp(tests[i].name, name) == 0)
			return 1;
	return 0;
}

/* Whether the names select a test: named tests run, and "!NAME" leaves one out. */
static int is_wanted(const char *test, int count, char **names)
{
	int others_run = 1;

	for (int i = 0; i < count; i++) {
		if (names[i][0] != '!')
			others_run = 0;
		if (strcmp(names[i] + (names[i][0] == '!'), test) == 0)
			return names[i][0] != '!';
	}
	return others_run;
}

int main(int count, char **names)
{
	int failed = 0, ran = 0;

	for (int i = 1; i < count; i++) {
		if (!is_test(names[i] + (names[i][0] == '!'))) {
			fprintf(stderr, "no test is called %s\n", names[i]);
			return 1;
		}
	}
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		if (is_wanted(tests[i].name, count - 1, names + 1)) {
			failed += run(tests[i].name, tests[i].run);
			ran++;
		}
	}
	printf("%d of %d tests failed\n", failed, ran);
	return failed != 0 || ran == 0;
}
