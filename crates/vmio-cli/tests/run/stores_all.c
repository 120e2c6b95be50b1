/* Stores to each page of a mapping of 32 MiB. Usage: stores_all FILE [handle | cut | signal | regrow | regrow-told]. With "handle" it
   has a handler of SIGBUS. With "signal" it reports when it handles SIGUSR1. With "cut" another process makes the file shorter, and it
   loads from behind the end. With "regrow" it does both, and loads and stores there again once another process has made the file longer.
   With "regrow-told" it calls msync in between. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };
static const long length = 32 << 20;
static sigjmp_buf before;

static void on_sigbus(int signal, siginfo_t *about, void *context) {
    (void)signal, (void)context;
    siglongjmp(before, about->si_code);
}

/* Sets the file's length by another process. */
static int make_it_long(const char *file, long bytes) {
    char command[5000];
    snprintf(command, sizeof command, "truncate -s %ld '%s'", bytes, file);
    return system(command);
}

static void on_signal(int signal) {
    (void)signal;
    if (write(1, "handled\n", 8) != 8) _exit(9);
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    const char *how = count > 2 ? arguments[2] : "";
    int fd = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || ftruncate(fd, length) != 0) return 3;
    volatile char *map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return 4;
    if (strcmp(how, "handle") == 0 || strncmp(how, "regrow", 6) == 0) {
        // The handler's stack is as small as usual, and nothing may be written below it.
        enum { STACK = 8 << 10 };
        char *guarded = mmap(NULL, PAGE + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        stack_t stack = {.ss_sp = guarded + PAGE, .ss_size = STACK};
        if (guarded == MAP_FAILED || mprotect(guarded, PAGE, PROT_NONE) != 0 || sigaltstack(&stack, NULL) != 0) return 8;
        struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigaction(SIGBUS, &action, NULL);
    }
    if (strcmp(how, "handle") == 0) {
        int code = sigsetjmp(before, 1);
        if (code != 0) {
            printf("SIGBUS, code %d\n", code);
            return 5;
        }
    }
    if (strcmp(how, "signal") == 0) signal(SIGUSR1, on_signal);
    if (strcmp(how, "cut") == 0) {
        if (make_it_long(arguments[1], PAGE) != 0) return 6;
        return map[5 << 20];
    }
    if (strncmp(how, "regrow", 6) == 0) {
        map[5 << 20] = 7;
        if (msync((void *)map, length, MS_SYNC) != 0) return 7;
        if (make_it_long(arguments[1], PAGE) != 0) return 6;
        if (strcmp(how, "regrow-told") == 0 && msync((void *)map, PAGE, MS_SYNC) != 0) return 7;
        volatile int caught = 0;
        if (sigsetjmp(before, 1) == 0) {
            printf("loaded %d\n", map[6 << 20]);
        } else if (caught++ == 0) {
            if (make_it_long(arguments[1], length) != 0) return 6;
            int seen = map[6 << 20];
            map[6 << 20] = 9;
            if (msync((void *)map, length, MS_SYNC) != 0) return 7;
            printf("loaded %d and synced\n", seen);
        } else {
            puts("another SIGBUS");
        }
        return 0;
    }
    for (long at = 0; at < length; at += PAGE)
        map[at] = (char)(at / PAGE + 1);
    if (msync((void *)map, length, MS_SYNC) != 0) return 7;
    printf("all stored\n");
    return 0;
}
