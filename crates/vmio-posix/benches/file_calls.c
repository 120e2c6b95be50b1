/* Appends, overwrites and reads of a file, 4 KiB each, with an fsync after every hundredth that writes, for `vmio run --mode`. Between two marks, for
 * `cargo xtask vm --count`, are the calls of a kind without what comes before.
 *
 * usage: file_calls FILE CALLS [append|overwrite|read]... */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "clock_and_numbers.h"

enum { CALL_BYTES = 4096, CALLS_A_SYNC = 100 };

static int file;
static unsigned calls;
static char bytes[CALL_BYTES];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* tests/vm/qemu/instructions.c counts from one to the next. */
static void mark(void) { __asm__ volatile("xchg %%bx, %%bx" ::: "memory"); }

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

static void append(unsigned n) {
    memcpy(bytes, &n, sizeof n);
    if (write(file, bytes, CALL_BYTES) != CALL_BYTES) fail("write");
}

static void overwrite(unsigned n) {
    memcpy(bytes, &n, sizeof n);
    if (pwrite(file, bytes, CALL_BYTES, (off_t)n * CALL_BYTES) != CALL_BYTES) fail("pwrite");
}

static void get(unsigned n) {
    if (pread(file, bytes, CALL_BYTES, (off_t)n * CALL_BYTES) != CALL_BYTES) fail("pread");
}

/* Of the calls of a kind the first tenth is not counted. */
static void measure(const char *name, void (*call)(unsigned), int syncs) {
    unsigned first = calls / 10;
    uint64_t began = 0, in_syncs = 0;
    long before = 0;
    for (unsigned n = 0; n < calls; n++) {
        if (n == first) before = faults(), began = now_ns(), in_syncs = 0, mark();
        call(n);
        if (syncs && n % CALLS_A_SYNC == CALLS_A_SYNC - 1) {
            uint64_t sync = now_ns();
            if (fsync(file) != 0) fail("fsync");
            in_syncs += now_ns() - sync;
        }
    }
    mark();
    uint64_t all = now_ns() - began;
    unsigned counted = calls - first;
    printf("%-9s touches %u ns a call %llu", name, counted, (unsigned long long)(all - in_syncs) / counted);
    if (syncs) printf(", ns an fsync %llu", (unsigned long long)in_syncs / (counted / CALLS_A_SYNC));
    printf("; page faults of all %ld\n", faults() - before);
}

int main(int argc, char **argv) {
    if (argc < 4 || (calls = atoi(argv[2])) < 10 * CALLS_A_SYNC) return 64;
    file = open(argv[1], O_RDWR | O_CREAT, 0644);
    if (file < 0) fail(argv[1]);
    for (int n = 3; n < argc; n++) {
        if (!strcmp(argv[n], "append")) measure(argv[n], append, 1);
        else if (!strcmp(argv[n], "overwrite")) measure(argv[n], overwrite, 1);
        else if (!strcmp(argv[n], "read")) measure(argv[n], get, 0);
        else return 64;
    }
    return close(file) != 0;
}
