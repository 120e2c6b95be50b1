/* A handler of a fault leaves a call by a jump. Usage: jumps_out siglongjmp | longjmp | within. Later writes still reach the file, and a
   jump within the handler leaves the call as it is. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64 };
static sigjmp_buf before;
static jmp_buf plain;
static const char *how;
static char *hidden;

static void on_fault(int signal) {
    if (strcmp(how, "within") == 0) {
        jmp_buf inner;
        if (_setjmp(inner) == 0) longjmp(inner, 1);
        mprotect(hidden, PAGE, PROT_READ | PROT_WRITE);
        return;
    }
    if (strcmp(how, "longjmp") == 0) {
        sigset_t set;
        sigemptyset(&set);
        sigprocmask(SIG_SETMASK, &set, NULL);
        longjmp(plain, signal);
    }
    siglongjmp(before, signal);
}

static void check(int holds, const char *what) {
    if (holds) return;
    perror(what);
    exit(2);
}

int main(int count, char **arguments) {
    check(count == 2, "usage");
    how = arguments[1];
    static char page[PAGE];
    int fd = open("data", O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int at = 0; at < PAGES; at++) check(pwrite(fd, page, PAGE, at * PAGE) == PAGE, "pwrite");
    volatile char *map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(map != MAP_FAILED, "mmap");
    map[0] = 'm';
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = 0};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    hidden = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < 20; round++) {
        mprotect(hidden, PAGE, PROT_NONE);
        /* A buffer without access. */
        if (sigsetjmp(before, 1) == 0 && _setjmp(plain) == 0 && pread(fd, hidden, PAGE, 0) < 0) check(errno == EFAULT, "pread");
        memset(page, 'a' + round, PAGE);
        check(pwrite(fd, page, PAGE, round * PAGE) == PAGE, "pwrite");
        check(map[round * PAGE] == 'a' + round, "the mapping does not have what was written");
        map[round * PAGE + 1] = 'A' + round;
        check(pread(fd, page, 2, round * PAGE) == 2 && page[1] == 'A' + round, "a read does not find what was stored");
    }
    printf("done\n");
    return 0;
}
