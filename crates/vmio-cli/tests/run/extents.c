/* Uses mapped files in the ways that matter where a process maps the medium of a file system itself, and prints the effects, for a comparison with
   a plain run.
 *
 * usage: extents FOLDER */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };

static void check(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static int file(const char *name, size_t length) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0666);
    check(fd >= 0 && ftruncate(fd, length) == 0, name);
    return fd;
}

static char *map(int fd, size_t length, int protection, int flags, off_t offset) {
    char *at = mmap(NULL, length, protection, flags, fd, offset);
    check(at != MAP_FAILED, "mmap");
    return at;
}

static char *shared(int fd, size_t length) { return map(fd, length, PROT_READ | PROT_WRITE, MAP_SHARED, 0); }

static sigjmp_buf again;
static void caught(int number) { siglongjmp(again, number); }

/* The signal of a load, or 0. */
static int signal_of(volatile char *at) {
    struct sigaction action = {.sa_handler = caught}, bus, segv;
    sigaction(SIGBUS, &action, &bus), sigaction(SIGSEGV, &action, &segv);
    int number = sigsetjmp(again, 1);
    if (number == 0) (void)*at;
    sigaction(SIGBUS, &bus, NULL), sigaction(SIGSEGV, &segv, NULL);
    return number;
}

static void print_part(int fd, off_t from, int length) {
    char bytes[64];
    check(pread(fd, bytes, length, from) == length, "pread");
    for (int n = 0; n < length; n++) putchar(bytes[n] ? bytes[n] : '.');
    putchar('\n');
}

static void wait_for(pid_t child) {
    int status;
    check(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a child");
}

/* The kernel fills memory of a hole, to which nothing was stored before. */
static void pointers(void) {
    int fd = file("pointers", 40 * MIB);
    char *at = shared(fd, 40 * MIB);
    int other = open("/proc/self/stat", O_RDONLY), ends[2];
    printf("read into a hole: %d\n", read(other, at + 10 * MIB, 100) > 0);
    struct iovec parts[2] = {{at + 20 * MIB, 8}, {at + 21 * MIB - 4, 8}};
    lseek(other, 0, SEEK_SET);
    printf("readv: %zd\n", readv(other, parts, 2));
    check(pipe(ends) == 0, "pipe");
    printf("write from a hole: %zd\n", write(ends[1], at + 30 * MIB, 4));
    printf("a byte: %d %d\n", at[10 * MIB] != 0, at[21 * MIB - 4] != 0);
    check(munmap(at, 40 * MIB) == 0, "munmap");
    close(fd);
}

static void children(void) {
    int fd = file("children", 6 * MIB);
    char *at = shared(fd, 6 * MIB), *page = map(fd, 2 * PAGE, PROT_READ, MAP_SHARED, 3 * PAGE);
    strcpy(at + 3 * PAGE, "parent");
    for (int generation = 0; generation < 3; generation++) {
        pid_t child = fork();
        if (child == 0) {
            printf("a child reads %s and %s\n", at + 3 * PAGE, page);
            sprintf(at + 3 * PAGE, "child %d", generation);
            strcpy(at + 5 * MIB + generation * PAGE, "new");
            pid_t grandchild = fork();
            if (grandchild == 0) {
                strcat(at + 3 * PAGE, " and its own");
                fflush(stdout);
                _exit(munmap(at, 6 * MIB));
            }
            wait_for(grandchild);
            printf("signal behind munmap: %d\n", (munmap(page, 2 * PAGE), signal_of(page)));
            fflush(stdout);
            _exit(0);
        }
        wait_for(child);
        printf("the parent reads %s and %s\n", page, at + 5 * MIB + generation * PAGE);
    }
    print_part(fd, 3 * PAGE, 24);
    munmap(at, 6 * MIB), munmap(page, 2 * PAGE), close(fd);
}

/* Closing any descriptor of a file ends the process's record locks: nobody but the program may do so. */
static void locks(void) {
    int fd = file("locks", 3 * MIB);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 1};
    check(fcntl(fd, F_SETLK, &lock) == 0, "lock");
    for (int n = 0; n < 20; n++) check(pwrite(fd, "x", 1, n) == 1, "pwrite");
    char *at = shared(fd, 3 * MIB);
    at[MIB] = 1;
    check(munmap(at, 3 * MIB) == 0 && ftruncate(fd, MIB) == 0 && fsync(fd) == 0, "munmap");
    for (int closes = 0; closes < 2; closes++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            int own = open("locks", O_RDWR);
            struct flock asked = lock;
            check(fcntl(own, F_GETLK, &asked) == 0, "F_GETLK");
            printf("locked: %d\n", asked.l_type == F_WRLCK);
            fflush(stdout);
            _exit(0);
        }
        wait_for(child);
        close(open("locks", O_RDONLY));
    }
    close(fd);
}

static void parts(void) {
    int fd = file("parts", 9 * MIB);
    char *at = shared(fd, 9 * MIB);
    memset(at, 'a', 9 * MIB);
    check(munmap(at + 2 * MIB, 3 * MIB) == 0, "munmap");
    printf("signals: %d %d %d %d\n", signal_of(at + 2 * MIB - 1), signal_of(at + 2 * MIB), signal_of(at + 5 * MIB - 1),
           signal_of(at + 5 * MIB));
    check(ftruncate(fd, 6 * MIB + 100) == 0, "ftruncate");
    printf("signals after a cut: %d %d\n", signal_of(at + 6 * MIB), signal_of(at + 7 * MIB));
    printf("behind the end: %d\n", at[6 * MIB + 200]);
    check(ftruncate(fd, 9 * MIB) == 0, "ftruncate");
    printf("after growth: %d %d\n", at[8 * MIB], signal_of(at + 3 * MIB));
    check(mprotect(at + 7 * MIB, MIB, PROT_NONE) == 0 && mprotect(at, MIB, PROT_READ) == 0, "mprotect");
    printf("signals by protection: %d %d\n", signal_of(at + 7 * MIB), signal_of(at + MIB));
    check(ftruncate(fd, 0) == 0 && ftruncate(fd, 9 * MIB) == 0, "ftruncate");
    printf("protected still: %d %d\n", signal_of(at + 7 * MIB), signal_of(at));
    printf("madvise: %d\n", madvise(at + 5 * MIB, PAGE, MADV_REMOVE));
    check(munmap(at, 2 * MIB) == 0 && munmap(at + 5 * MIB, 4 * MIB) == 0, "munmap");
    close(fd);
}

static void moves(void) {
    int fd = file("moves", 20 * MIB);
    char *at = map(fd, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, MIB);
    strcpy(at, "begin"), strcpy(at + 4 * MIB - 10, "end");
    at = mremap(at, 4 * MIB, 10 * MIB, MREMAP_MAYMOVE);
    check(at != MAP_FAILED, "mremap");
    strcpy(at + 9 * MIB, "more");
    printf("%s %s %s\n", at, at + 4 * MIB - 10, at + 9 * MIB);
    at = mremap(at, 10 * MIB, MIB, 0);
    check(at != MAP_FAILED, "mremap");
    printf("%s %d\n", at, signal_of(at + 9 * MIB));
    print_part(fd, 10 * MIB, 5);
    char *read_only = map(fd, MIB, PROT_READ, MAP_PRIVATE, 10 * MIB);
    printf("private: %s\n", read_only);
    munmap(read_only, MIB), munmap(at, MIB), close(fd);
}

/* Another process, which vmio knows nothing of, uses the file by system calls and by a mapping. */
static void strangers(void) {
    int fd = file("strangers", 4 * MIB);
    char *at = shared(fd, 4 * MIB);
    strcpy(at + 3 * MIB, "stored");
    check(system("LD_PRELOAD= dd if=strangers bs=1M skip=3 count=1 2>/dev/null | head -c 6 && echo") == 0, "dd");
    check(system("LD_PRELOAD= python3 -c \"\nimport mmap\nwith open('strangers', 'r+b') as file:\n  map = mmap.mmap(file.fileno(), 0)\n"
                 "  print(map[3 << 20:(3 << 20) + 6].decode(), flush=True)\n  map[:5] = b'other'\"") == 0, "python3");
    printf("%s\n", at);
    strcpy(at, "again");
    check(msync(at, 4 * MIB, MS_SYNC) == 0 && fdatasync(fd) == 0, "sync");
    print_part(fd, 0, 6);
    munmap(at, 4 * MIB), close(fd);
}

static void *store(void *at) {
    for (int n = 0; n < 64; n++) ((volatile char *)at)[(size_t)n * PAGE * 16 + 1] = 1;
    return NULL;
}

/* Threads touch the same holes for the first time while children come and go. */
static void threads(void) {
    int fd = file("threads", 8 * MIB);
    char *at = shared(fd, 8 * MIB);
    pthread_t running[4];
    for (int n = 0; n < 4; n++) check(pthread_create(&running[n], NULL, store, at + n / 2 * 4 * MIB) == 0, "thread");
    for (int n = 0; n < 10; n++) {
        pid_t child = fork();
        if (child == 0) _exit(at[n * 2] != 0);
        wait_for(child);
    }
    for (int n = 0; n < 4; n++) pthread_join(running[n], NULL);
    int sum = 0;
    for (int n = 0; n < 128; n++) sum += at[(size_t)n * PAGE * 16 + 1];
    printf("%d stores\n", sum);
    munmap(at, 8 * MIB), close(fd);
}

int main(int argc, char **argv) {
    if (argc != 2 || chdir(argv[1]) != 0) return 64;
    pointers(), children(), locks(), parts(), moves(), strangers(), threads();
    fflush(stdout);
    return 0;
}
