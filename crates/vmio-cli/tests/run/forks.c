/* Forks while another thread begins to use a file: forks FILE read|map ROUNDS. Nobody hangs, and the thread reads the file's present
   bytes, whatever the children have done with it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, READS = 24, MORE_READS = 2000, LIMIT_SECONDS = 20, BALLAST = 32 << 20 };

static const char *path;
static int maps;
static pthread_barrier_t barrier;
static int descriptor;
static unsigned seed = 1;

static void check(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(2);
    }
}

static unsigned char read_one(int fd) {
    unsigned char byte;
    check(pread(fd, &byte, 1, 100) == 1, "pread");
    return byte;
}

static void use(int fd) {
    if (maps) {
        volatile unsigned char *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        check(map != MAP_FAILED, "mmap");
        (void)map[0];
        check(munmap((void *)map, PAGE) == 0, "munmap");
    }
    /* In some rounds the reads end before the fork, and in others they go on. */
    for (int left = READS + rand_r(&seed) % MORE_READS; left > 0; left--) read_one(fd);
}

static void *user(void *rounds) {
    for (int round = 0; round < *(int *)rounds; round++) {
        pthread_barrier_wait(&barrier);
        descriptor = open(path, O_RDWR);
        check(descriptor >= 0, "open");
        use(descriptor);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void child(void) {
    alarm(LIMIT_SECONDS);
    /* A file of its own: a process that maps a file has the file to itself. */
    char own[4096];
    snprintf(own, sizeof own, "%s.child", path);
    int fd = open(own, O_RDWR | O_CREAT, 0600);
    check(fd >= 0 && ftruncate(fd, 2 * PAGE) == 0, "a child's file");
    use(fd);
    _exit(0);
}

/* Writes like a program that vmio knows nothing of. */
static void write_past_the_library(unsigned char byte) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY, 0);
    check(fd >= 0 && syscall(SYS_pwrite64, fd, &byte, 1, 100L) == 1 && syscall(SYS_close, fd) == 0, "write");
}

int main(int argc, char **argv) {
    check(argc == 4, "usage");
    path = argv[1];
    maps = strcmp(argv[2], "map") == 0;
    int rounds = atoi(argv[3]);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    check(fd >= 0 && ftruncate(fd, 2 * PAGE) == 0 && close(fd) == 0, "create");
    /* Makes the copy of the address space take its time. */
    memset(mmap(NULL, BALLAST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, BALLAST);
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    check(pthread_create(&thread, NULL, user, &rounds) == 0, "pthread_create");
    int stale = 0;
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&barrier);
        for (volatile int spin = 0; spin < round % 50 * 1000; spin++) {}
        pid_t process = fork();
        check(process >= 0, "fork");
        if (process == 0) child();
        int status;
        check(waitpid(process, &status, 0) == process, "waitpid");
        check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child hangs or fails");
        pthread_barrier_wait(&barrier);
        if (!maps) {
            read_one(descriptor);
            write_past_the_library(round % 251 + 1);
            stale += read_one(descriptor) != round % 251 + 1;
        }
        check(close(descriptor) == 0, "close");
    }
    pthread_join(thread, NULL);
    printf("%d old bytes\n", stale);
    return stale > 0;
}
