/* Appends to one file what a mapping of another one shows, while others cut both. Nobody waits for ever.
 *
 * usage: sources FILE OTHER APPENDS */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 8 << 20, COUNT = 8192 };

static void check(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

/* vmio knows nothing of this process. */
static void cut(const char *path, off_t length) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(path, O_RDWR);
    check(fd >= 0, path);
    for (;;) {
        check(ftruncate(fd, length / 2) == 0 && ftruncate(fd, length) == 0, "ftruncate");
        usleep(length ? 300 : 2000);
    }
}

static pid_t start(const char *path, const char *length) {
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        unsetenv("LD_PRELOAD"), unsetenv("VMIO_RUN_UNDER");
        execl("/proc/self/exe", "cutter", path, length, NULL);
        _exit(127);
    }
    return child;
}

int main(int argc, char **argv) {
    if (argc == 3) cut(argv[1], atol(argv[2]));
    check(argc == 4, "usage");
    check(close(open(argv[1], O_RDWR | O_CREAT, 0600)) == 0 && close(open(argv[2], O_RDWR | O_CREAT, 0600)) == 0, "create");
    char length[32];
    snprintf(length, sizeof length, "%d", LENGTH);
    pid_t cutters[2] = {start(argv[1], "0"), start(argv[2], length)};
    /* After the forks, from which on vmio serves none of the files open then. */
    int fd = open(argv[1], O_RDWR | O_APPEND), other = open(argv[2], O_RDWR);
    check(fd >= 0 && other >= 0 && ftruncate(other, LENGTH) == 0, "open");
    char *map = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
    check(map != MAP_FAILED, "mmap");
    unsigned seed = 1;
    long done = 0, missing = 0;
    for (int n = 0; n < atoi(argv[3]); n++) {
        ssize_t count = write(fd, map + rand_r(&seed) % (LENGTH - COUNT), COUNT);
        /* What is cut off is no buffer. */
        if (count < 0) check(errno == EFAULT, "write"), missing++;
        else done++;
    }
    for (int n = 0; n < 2; n++) kill(cutters[n], SIGKILL), waitpid(cutters[n], NULL, 0);
    check(ftruncate(fd, 0) == 0 && ftruncate(other, LENGTH) == 0, "ftruncate");
    memset(map + 5000000, 'x', COUNT);
    check(write(fd, map + 5000000, COUNT) == COUNT, "the last write");
    char last[COUNT];
    check(pread(fd, last, COUNT, 0) == COUNT, "pread");
    check(memcmp(last, map + 5000000, COUNT) == 0, "other bytes");
    printf("%s\n", done > 0 ? "appended" : "nothing was appended");
    return 0;
}
