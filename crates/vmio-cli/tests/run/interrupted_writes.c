/* Runs a process that overwrites a file at random until a signal handler ends it, and then looks for each write that had returned:
   interrupted_writes FILE COMMAND..., where COMMAND runs this program with the arguments behind it: FILE COUNTER ROUND. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEED 88172645463325252u

enum { PAGE = 4096, PAGES = 6144, PART = 1000 };

static void check(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(2);
    }
}

static void end(int signal) {
    (void)signal;
    _exit(7);
}

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* The place of the next write; nearly every page is missing in a small cache. */
static off_t place(uint64_t *state) { return (off_t)(next(state) % PAGES) * PAGE + 100; }

static void overwrite(const char *path, volatile uint64_t *done, int round) {
    int fd = open(path, O_RDWR);
    check(fd >= 0, "open");
    signal(SIGALRM, end);
    struct itimerval timer = {.it_value = {.tv_usec = 400000 + 37000 * round}};
    setitimer(ITIMER_REAL, &timer, NULL);
    uint64_t state = SEED;
    for (uint64_t n = 1;; n++) {
        char part[PART];
        memset(part, (int)(n % 251) + 1, sizeof part);
        check(pwrite(fd, part, sizeof part, place(&state)) == sizeof part, "pwrite");
        *done = n;
    }
}

static uint64_t lost(const char *path, uint64_t done) {
    static unsigned char expected[PAGES];
    memset(expected, 0, sizeof expected);
    uint64_t state = SEED;
    for (uint64_t n = 1; n <= done; n++) expected[place(&state) / PAGE] = (unsigned char)(n % 251 + 1);
    /* The interrupted write may be there or not. */
    off_t last = place(&state) / PAGE;
    int fd = open(path, O_RDONLY);
    check(fd >= 0, "open");
    uint64_t lost = 0;
    for (off_t page = 0; page < PAGES; page++) {
        unsigned char part[PART];
        check(pread(fd, part, PART, page * PAGE + 100) == PART, "pread");
        lost += page != last && (part[0] != expected[page] || part[PART - 1] != expected[page]);
    }
    close(fd);
    return lost;
}

enum { ARGUMENTS_MAX = 30 };

int main(int argc, char **argv) {
    check(argc >= 3 && argc < ARGUMENTS_MAX, "usage");
    int is_child = argc == 4 && strspn(argv[2], "0123456789") == strlen(argv[2]);
    int counter = is_child ? atoi(argv[2]) : memfd_create("counter", 0);
    check(counter >= 0 && ftruncate(counter, PAGE) == 0, "counter");
    volatile uint64_t *done = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, counter, 0);
    check(done != MAP_FAILED, "mmap");
    if (is_child) overwrite(argv[1], done, atoi(argv[3]));
    for (int round = 0; round < 4; round++) {
        int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
        check(fd >= 0 && ftruncate(fd, (off_t)PAGES * PAGE) == 0 && close(fd) == 0, "create");
        *done = 0;
        char counter_text[16], round_text[16], *command[ARGUMENTS_MAX + 4];
        snprintf(counter_text, sizeof counter_text, "%d", counter);
        snprintf(round_text, sizeof round_text, "%d", round);
        memcpy(command, argv + 2, (argc - 2) * sizeof *argv);
        char *arguments[] = {argv[1], counter_text, round_text, NULL};
        memcpy(command + argc - 2, arguments, sizeof arguments);
        pid_t child = fork();
        check(child >= 0, "fork");
        if (child == 0) {
            execv(command[0], command);
            _exit(3);
        }
        int status;
        check(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child");
        uint64_t missing = lost(argv[1], *done);
        printf("%d: %llu of %llu writes lost\n", round, (unsigned long long)missing, (unsigned long long)*done);
        if (missing > 0) return 1;
    }
    return 0;
}
