// Signals of a program whose file is mapped by vmio: handlers that jump away, touch the mapping, and interrupt calls into it.
// Prints what it has counted; ends with 1 where something is wrong.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 6000

static unsigned char *map;
static sigjmp_buf back;
static volatile sig_atomic_t jumps, ticks, wrong;
static volatile int jump_away;

static void check(int is_right, const char *what) {
    if (!is_right) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static uint64_t load(long page) {
    uint64_t word;
    memcpy(&word, map + page * PAGE, sizeof word);
    return word;
}

static void on_alarm(int signal) {
    (void)signal;
    // As handlers do that must not be interrupted.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    // Nobody stores to the last pages.
    for (long page = PAGES - 40; page < PAGES; page += 7)
        if (load(page) != (uint64_t)page)
            wrong = 1;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    ticks++;
    if (jump_away) {
        jumps++;
        siglongjmp(back, 1);
    }
}

// Another one comes once this one is over.
static void after(long microseconds) {
    struct itimerval timer = {{0, 0}, {0, microseconds}};
    check(setitimer(ITIMER_REAL, &timer, NULL) == 0, "setitimer");
}

// Until one of them finds what it is to interrupt: the first may be too early.
static void again_and_again(long microseconds) {
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    check(setitimer(ITIMER_REAL, &timer, NULL) == 0, "setitimer");
}

static void *spin(void *argument) {
    long *rounds = argument;
    for (; !wrong && ticks < 200; ++*rounds) {
        long page = (*rounds * 131) % (PAGES - 100);
        uint64_t word = (uint64_t)page;
        if (load(page) != word)
            wrong = 1;
    }
    return NULL;
}

int main(int count, char **arguments) {
    (void)count;
    int file = open(arguments[1], O_RDWR | O_CREAT, 0600);
    check(file >= 0 && ftruncate(file, (off_t)PAGES * PAGE) == 0, "the file");
    map = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(map != MAP_FAILED, "mmap");
    for (long page = 0; page < PAGES; page++)
        memcpy(map + page * PAGE, &(uint64_t){(uint64_t)page}, sizeof(uint64_t));

    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigfillset(&action.sa_mask);
    check(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");

    // Handlers that touch the mapping interrupt faults on it, in several threads.
    pthread_t threads[3];
    long rounds[3] = {0};
    for (int n = 0; n < 3; n++)
        check(pthread_create(&threads[n], NULL, spin, &rounds[n]) == 0, "pthread_create");
    while (ticks < 200 && !wrong) {
        long seen = ticks;
        after(300);
        for (long page = 0; ticks == seen && !wrong; page = (page + 17) % (PAGES - 100))
            if (load(page) != (uint64_t)page)
                wrong = 2;
    }
    for (int n = 0; n < 3; n++)
        check(pthread_join(threads[n], NULL) == 0, "pthread_join");
    check(!wrong, "a word of the mapping");

    // A read into the mapping waits, is interrupted, begins again, and is jumped out of, many times: nothing stays held.
    int ends[2];
    check(pipe(ends) == 0, "pipe");
    jump_away = 1;
    for (volatile int round = 0; round < 300; round++) {
        if (sigsetjmp(back, 1) == 0) {
            after(500);
            ssize_t got = read(ends[0], map + (100 + round) * PAGE, 4 * PAGE);
            fprintf(stderr, "a read of nothing came back with %zd\n", got);
            return 1;
        }
    }
    // As a loop, too.
    for (volatile int round = 0; round < 100; round++) {
        if (sigsetjmp(back, 1) == 0) {
            after(300);
            for (long page = 0;; page = (page + 17) % (PAGES - 100))
                if (load(page) != (uint64_t)page)
                    return 1;
        }
    }
    jump_away = 0;
    // The interrupted call is the program's: with SA_RESTART it goes on, without it does not.
    after(20000);
    struct timespec time = {0, 200000000};
    check(nanosleep(&time, NULL) == -1 && errno == EINTR, "nanosleep");
    sigset_t others;
    sigfillset(&others);
    sigdelset(&others, SIGALRM);
    again_and_again(20000);
    check(sigsuspend(&others) == -1 && errno == EINTR, "sigsuspend");
    after(0);
    action.sa_flags = 0;
    check(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
    again_and_again(20000);
    check(read(ends[0], map + 50 * PAGE, 8) == -1 && errno == EINTR, "read");
    after(0);
    check(write(ends[1], "12345678", 8) == 8, "write");
    check(read(ends[0], map + 50 * PAGE, 8) == 8 && memcmp(map + 50 * PAGE, "12345678", 8) == 0, "the read");
    printf("%d jumps\n", (int)jumps);
    return 0;
}
