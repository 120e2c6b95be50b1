/* Runs a command, and says how many page faults it and its children have had, and how long it took for each of its operations. It has marks for
 * `cargo xtask vm --count` before and behind. So programs can be counted that know nothing of either.
 *
 * usage: whole_run OPERATIONS COMMAND... */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock_and_numbers.h"

/* tests/vm/qemu/instructions.c counts from one to the next. */
static void mark(void) { __asm__ volatile("xchg %%bx, %%bx" ::: "memory"); }

int main(int argc, char **argv) {
    unsigned long operations = argc > 2 ? strtoul(argv[1], NULL, 10) : 0;
    int status;
    struct rusage usage;
    if (!operations) return 64;
    uint64_t began = now_ns();
    mark();
    pid_t child = fork();
    if (child == 0) {
        execvp(argv[2], argv + 2);
        perror(argv[2]);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror(argv[2]);
        return 1;
    }
    mark();
    uint64_t ended = now_ns();
    getrusage(RUSAGE_CHILDREN, &usage);
    printf("touches %lu, ns each %llu, page faults %ld\n", operations, (unsigned long long)((ended - began) / operations),
           usage.ru_minflt + usage.ru_majflt);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
