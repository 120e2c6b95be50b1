/* A mapping in children and in fork handlers, and the descriptors and record locks beside it. vmio's library gets to know of the fork after a handler of this program, which touches the mapping first.
 *
 * usage: heirs FILE limits|handlers|locks */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PART = 2 << 20, PARTS = 40, LENGTH = PART * PARTS };

static volatile unsigned char *map;
static int next_part, touched;

static void check(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

/* A hole, which no lease has yet. */
static void touch_before_fork(void) {
    if (map && next_part < PARTS) touched += map[(long)next_part++ * PART] == 0;
}

static void touch_after_fork(void) {
    if (map && next_part < PARTS) touched += map[(long)next_part++ * PART] == 0;
}

static void early(void) {
    pthread_atfork(touch_before_fork, touch_after_fork, NULL);
}

/* Before the constructors of all libraries. */
__attribute__((section(".preinit_array"), used)) static void (*before_libraries)(void) = early;

static int descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    check(folder != NULL, "/proc/self/fd");
    int count = 0;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static void waited(pid_t child, const char *who) {
    int status;
    check(waitpid(child, &status, 0) == child, "waitpid");
    if (status == 0) return;
    fprintf(stderr, "%s: status %x\n", who, status);
    exit(1);
}

static pid_t forked(void) {
    pid_t child = fork();
    check(child >= 0, "fork");
    return child;
}

/* Children that may have so many descriptors more, and no others. Each has a child of its own. */
static void limits(void) {
    struct rlimit all, less;
    check(getrlimit(RLIMIT_NOFILE, &all) == 0, "getrlimit");
    less = all;
    int lowest = dup(0);
    check(lowest >= 0 && close(lowest) == 0, "dup");
    for (int more = 0; more < 12; more++) {
        less.rlim_cur = lowest + more;
        check(setrlimit(RLIMIT_NOFILE, &less) == 0, "setrlimit");
        map[more] = 100 + more;
        pid_t child = forked();
        if (child == 0) {
            if (map[more] != 100 + more) _exit(2);
            map[PART + more] = 1;
            map[LENGTH - 1 - more] = 2;
            pid_t grandchild = fork();
            if (grandchild == 0) {
                if (map[more] != 100 + more || map[PART + more] != 1 || map[LENGTH - 1 - more] != 2) _exit(3);
                map[2 * PART + more] = 3;
                _exit(0);
            }
            waited(grandchild, "a grandchild");
            if (map[2 * PART + more] != 3) _exit(4);
            _exit(0);
        }
        waited(child, "a child");
        check(setrlimit(RLIMIT_NOFILE, &all) == 0, "setrlimit");
        if (map[PART + more] != 1 || map[2 * PART + more] != 3) printf("%d: the parent misses a store\n", more);
    }
    puts("all children had it");
}

static void handlers(void) {
    next_part = 1;
    for (int round = 0; round < 8; round++) {
        pid_t child = forked();
        if (child == 0) _exit(0);
        waited(child, "a child");
    }
    printf("%d parts were touched\n", touched);
}

static int is_locked(int fd) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *about = fopen(path, "r");
    check(about != NULL, path);
    int found = 0;
    while (fgets(line, sizeof line, about)) found |= strstr(line, "POSIX") != NULL;
    fclose(about);
    return found;
}

static void map_and_unmap(int fd) {
    volatile char *at = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(at != MAP_FAILED, "mmap");
    at[0]++;
    check(munmap((void *)at, PART) == 0, "munmap");
}

static void locks(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int before = descriptors();
    check(fcntl(fd, F_SETLK, &lock) == 0, "lock");
    for (int n = 0; n < 50; n++) map_and_unmap(fd);
    printf("locked: %d, few descriptors more: %d, ", is_locked(fd), descriptors() <= before + 1);
    lock.l_type = F_UNLCK;
    check(fcntl(fd, F_SETLK, &lock) == 0, "unlock");
    map_and_unmap(fd);
    printf("none: %d\n", descriptors() <= before);
}

int main(int argc, char **argv) {
    check(argc == 3, "usage");
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    check(fd >= 0 && ftruncate(fd, LENGTH) == 0, argv[1]);
    void *at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(at != MAP_FAILED, "mmap");
    map = at;
    next_part = PARTS;
    if (strcmp(argv[2], "handlers") == 0) handlers();
    else if (strcmp(argv[2], "locks") == 0) locks(fd);
    else limits();
    return 0;
}
