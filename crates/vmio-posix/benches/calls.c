/* System calls of three kinds, for `vmio run`: one that does nothing, one that copies a page from the page cache, and one that may wait for an
 * event, but does not.
 *
 * usage: calls FILE ROUNDS */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock_and_numbers.h"

enum { PAGE = 4096 };

static int file, event;
static char page[PAGE];

static int ask(void) { return syscall(SYS_getppid) > 0; }

static int copy(void) { return pread(file, page, PAGE, 0) == PAGE; }

static int take(void) {
    uint64_t one;
    return read(event, &one, sizeof one) == sizeof one;
}

static void measure(const char *name, int (*call)(void), unsigned rounds) {
    /* The first calls touch what later ones find. */
    for (unsigned n = 0; n < rounds / 10 + 1; n++)
        if (!call()) perror(name), exit(1);
    uint64_t began = now_ns();
    for (unsigned n = 0; n < rounds; n++)
        if (!call()) perror(name), exit(1);
    printf(" %s %llu", name, (unsigned long long)(now_ns() - began) / rounds);
}

int main(int argc, char **argv) {
    if (argc != 3) return 64;
    unsigned rounds = atoi(argv[2]);
    file = open(argv[1], O_RDONLY);
    /* A semaphore that is never at zero. */
    event = eventfd(2 * rounds + 2, EFD_SEMAPHORE);
    if (file < 0 || event < 0 || rounds == 0) return perror(argv[1]), 1;
    printf("ns a call:");
    measure("getppid", ask, rounds);
    measure("pread", copy, rounds);
    measure("read-event", take, rounds);
    printf("\n");
    return 0;
}
