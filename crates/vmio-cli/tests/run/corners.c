/* Makes the rarer calls on mapped memory, and prints the effect of each, for a comparison with a plain run.
 *
 * usage: corners FOLDER */
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
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 16, LENGTH = PAGE * PAGES };

static void check(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static char *map(int fd, int protection, int flags) {
    char *at = mmap(NULL, LENGTH, protection, flags, fd, 0);
    check(at != MAP_FAILED, "mmap");
    return at;
}

static char *shared(int fd) { return map(fd, PROT_READ | PROT_WRITE, MAP_SHARED); }

static int file(const char *name, size_t length) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0666);
    check(fd >= 0 && ftruncate(fd, length) == 0, name);
    return fd;
}

static void protection(void) {
    int fd = file("protection", LENGTH);
    char *all = shared(fd);
    strcpy(all, "as it was");
    int reader = open("protection", O_RDONLY);
    char *at = map(reader, PROT_READ, MAP_SHARED);
    printf("stores by mprotect to what is open for reading: %d\n", mprotect(at, LENGTH, PROT_READ | PROT_WRITE) == 0);
    char *private = map(fd, PROT_READ, MAP_PRIVATE);
    if (mprotect(private, LENGTH, PROT_READ | PROT_WRITE) == 0) strcpy(private, "changed");
    printf("the file is %s\n", all);
    errno = 0;
    int status = munmap(all, 0);
    printf("munmap of nothing: %d, %s\n", status, strerror(errno));
    check(munmap(all, LENGTH) == 0 && munmap(at, LENGTH) == 0 && munmap(private, LENGTH) == 0, "munmap");
    close(reader), close(fd);
}

static long length_of(const char *name) {
    struct stat stat;
    check(lstat(name, &stat) == 0, name);
    return stat.st_size;
}

static void cut_off(void) {
    int fd = file("cut", LENGTH);
    char *at = shared(fd);
    memset(at, 'x', LENGTH);
    close(open("cut", O_RDWR | O_TRUNC));
    check(ftruncate(fd, LENGTH) == 0, "ftruncate");
    printf("after O_TRUNC and ftruncate: %d\n", at[100]);
    memset(at, 'x', LENGTH);
    close(open("cut", O_RDWR | O_TRUNC));
    check(posix_fallocate(fd, 0, LENGTH) == 0, "posix_fallocate");
    printf("after O_TRUNC and posix_fallocate: %d\n", at[100]);
    memset(at, 'x', LENGTH);
    close(open("cut", O_RDWR | O_TRUNC));
    check(msync(at, LENGTH, MS_SYNC) == 0, "msync");
    printf("after O_TRUNC and msync: %ld\n", length_of("cut"));
    check(ftruncate(fd, LENGTH) == 0, "ftruncate");
    memset(at, 'x', LENGTH);
    close(open("cut", O_RDWR | O_TRUNC));
    check(munmap(at, LENGTH) == 0, "munmap");
    printf("after O_TRUNC and munmap: %ld\n", length_of("cut"));
    close(fd);
}

static void show_when_killed(pid_t child, const char *name, const char *what) {
    int status;
    check(waitpid(child, &status, 0) == child, "waitpid");
    char buffer[17] = "";
    int fd = open(name, O_RDONLY);
    check(read(fd, buffer, 16) == 16, "read");
    printf("%s: %s\n", what, buffer);
    close(fd);
}

/* A child is killed after a write that follows its last munmap. */
static void killed_after_munmap(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int fd = file("killed", LENGTH);
        char *at = shared(fd);
        strcpy(at, "stored, ");
        check(munmap(at, LENGTH) == 0 && pwrite(fd, "written", 8, 8) == 8, "pwrite");
        kill(getpid(), SIGKILL);
    }
    show_when_killed(child, "killed", "of a program that was killed");
}

/* The same while the program holds a lock of the file, which vmio must not release. */
static void killed_with_a_lock(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int fd = file("locked", LENGTH);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        check(fcntl(fd, F_SETLK, &lock) == 0, "a lock before mmap");
        char *at = shared(fd);
        strcpy(at, "stored, ");
        check(munmap(at, LENGTH) == 0 && pwrite(fd, "written", 8, 8) == 8, "pwrite");
        at = shared(fd);
        check(strcmp(at + 8, "written") == 0 && munmap(at, LENGTH) == 0, "a load of what was written");
        kill(getpid(), SIGKILL);
    }
    show_when_killed(child, "locked", "of one with a lock");
}

static void locks(void) {
    int fd = file("locks", LENGTH);
    char *at = shared(fd);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    check(fcntl(fd, F_GETLK, &lock) == 0, "F_GETLK");
    printf("who has a lock: %s\n", lock.l_type == F_UNLCK ? "nobody" : "somebody");
    struct flock from_the_end = {.l_type = F_WRLCK, .l_whence = SEEK_END, .l_start = -10};
    printf("from the end: %d\n", fcntl(fd, F_SETLK, &from_the_end));
    printf("lockf: %d %d %d\n", lockf(fd, F_TEST, 0), lockf(fd, F_TLOCK, 0), lockf(fd, F_LOCK, 0));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct flock other = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
        check(fcntl(fd, F_GETLK, &other) == 0, "F_GETLK");
        printf("another process finds a lock of %ld bytes from %ld on, of its parent: %d", (long)other.l_len,
               (long)other.l_start, other.l_pid == getppid());
        errno = 0;
        int status = lockf(fd, F_TEST, 0);
        printf(", lockf: %d, %s\n", status, strerror(errno));
        fflush(stdout);
        _exit(0);
    }
    int status;
    check(waitpid(child, &status, 0) == child, "waitpid");
    printf("unlocked: %d\n", lockf(fd, F_ULOCK, 0));
    check(munmap(at, LENGTH) == 0, "munmap");
    close(fd);
}

/* vmio cannot open the file once more, since too many files are open. */
static void too_many_open(void) {
    int first = file("first", LENGTH), fd = file("second", LENGTH), last = dup(fd);
    char *other = shared(first);
    struct rlimit before, less;
    check(getrlimit(RLIMIT_NOFILE, &before) == 0, "getrlimit");
    less = before;
    less.rlim_cur = 3;
    check(setrlimit(RLIMIT_NOFILE, &less) == 0, "setrlimit");
    char *at = shared(fd);
    check(setrlimit(RLIMIT_NOFILE, &before) == 0, "setrlimit");
    strcpy(at, "mapped all the same");
    char *again = shared(fd);
    printf("%s\n", again);
    check(munmap(at, LENGTH) == 0 && munmap(again, LENGTH) == 0 && munmap(other, LENGTH) == 0, "munmap");
    close(first), close(fd), close(last);
}

/* First at an address of the program's choice. */
static void fixed_and_not(void) {
    int fd = file("fixed", LENGTH);
    void *place = mmap(NULL, LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *a = mmap(place, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0), *b = shared(fd);
    check(a == place, "mmap");
    a[0] = 'a', b[1] = 'b';
    printf("%c%c %c%c\n", a[0], a[1], b[0], b[1]);
    check(munmap(a, LENGTH) == 0 && munmap(b, LENGTH) == 0, "munmap");
    close(fd);
}

enum { RECORDS = 2000 };

static void *append(void *letter) {
    int fd = open("appended", O_WRONLY | O_APPEND);
    char record[32];
    memset(record, *(char *)letter, sizeof record);
    for (int n = 0; n < RECORDS; n++) check(write(fd, record, sizeof record) == sizeof record, "append");
    close(fd);
    return NULL;
}

static void appends_of_two_threads(void) {
    int fd = file("appended", PAGE);
    char *at = shared(fd);
    pthread_t threads[2];
    check(pthread_create(threads, NULL, append, "a") == 0 && pthread_create(threads + 1, NULL, append, "b") == 0, "threads");
    for (int n = 0; n < 2; n++) pthread_join(threads[n], NULL);
    int counts[256] = {0};
    unsigned char bytes[500];
    for (long n = PAGE, end = length_of("appended"); n < end; n += sizeof bytes) {
        check(pread(fd, bytes, sizeof bytes, n) == sizeof bytes, "pread");
        for (size_t m = 0; m < sizeof bytes; m++) counts[bytes[m]]++;
    }
    printf("appended: %d %d, other bytes: %d\n", counts['a'], counts['b'], counts[0]);
    check(ftruncate(fd, 0) == 0, "ftruncate"); /* The order of the bytes is undefined. */
    check(munmap(at, LENGTH) == 0, "munmap");
    close(fd);
}

/* Vectors with flags, and pipes. */
static void newer_calls(void) {
    int fd = file("newer", LENGTH), pipe_ends[2];
    char *at = shared(fd), buffer[16] = "";
    struct iovec out = {.iov_base = buffer, .iov_len = 6};
    strcpy(at, "stored");
    check(preadv2(fd, &out, 1, 0, 0) == 6, "preadv2");
    printf("preadv2: %s, ", buffer);
    check(lseek(fd, 3, SEEK_SET) == 3 && preadv2(fd, &out, 1, -1, RWF_HIPRI) == 6, "preadv2 at the position");
    printf("%.3s, at %ld\n", buffer, (long)lseek(fd, 0, SEEK_CUR));
    struct iovec in = {.iov_base = "written", .iov_len = 7};
    check(pwritev2(fd, &in, 1, PAGE, RWF_DSYNC) == 7, "pwritev2");
    printf("pwritev2: %.7s, ", at + PAGE);
    check(pwritev2(fd, &in, 1, 0, RWF_APPEND) == 7, "pwritev2, appending");
    printf("appended: %.6s, %ld\n", at, length_of("newer"));
    errno = 0;
    printf("unknown flags: %zd", preadv2(fd, &out, 1, 0, 1 << 30));
    printf(", %s\n", strerror(errno));
    check(pipe(pipe_ends) == 0, "pipe");
    loff_t from = 0, to = 2 * PAGE;
    strcpy(at, "poured");
    check(splice(fd, &from, pipe_ends[1], NULL, 6, 0) == 6, "splice from the file");
    check(splice(pipe_ends[0], NULL, fd, &to, 6, 0) == 6, "splice to the file");
    printf("splice: %.6s\n", at + 2 * PAGE);
    check(munmap(at, LENGTH) == 0, "munmap");
    close(pipe_ends[0]), close(pipe_ends[1]), close(fd);
}

/* A child that ends without running its atexit functions. */
static void ends_quickly(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        strcpy(shared(file("quick", LENGTH)), "stored, and over");
        quick_exit(0);
    }
    show_when_killed(child, "quick", "of one that ended quickly");
}

static int cancelled_file, ends[2];

static void *sync_for_ever(void *at) {
    for (;;) {
        *(volatile char *)at = 1;
        msync(at, LENGTH, MS_SYNC);
        fsync(cancelled_file);
        pthread_testcancel();
    }
    return at;
}

static void *read_for_ever(void *unused) {
    char byte;
    for (;;) check(read(ends[0], &byte, 1) == 1, "read");
    return unused;
}

static void cancelled(void) {
    int fd = cancelled_file = file("cancelled", LENGTH);
    char *at = shared(fd);
    check(pipe(ends) == 0, "pipe");
    for (int n = 0; n < 20; n++) {
        pthread_t thread;
        void *result;
        check(pthread_create(&thread, NULL, n % 2 ? sync_for_ever : read_for_ever, at) == 0, "pthread_create");
        usleep(3000);
        check(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0, "pthread_cancel");
        check(result == PTHREAD_CANCELED, "cancelled");
    }
    printf("cancelled\n");
    check(munmap(at, LENGTH) == 0, "munmap");
    close(ends[0]), close(ends[1]), close(fd);
}

static void end(int signal) {
    (void)signal;
    _exit(7);
}

/* A child that ends in a signal handler in the middle of work on the file. */
static void ends_in_a_handler(void) {
    for (int n = 0; n < 4; n++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            int fd = file("handler", LENGTH);
            char *at = shared(fd);
            strcpy(at, "stored before");
            signal(SIGALRM, end);
            struct itimerval timer = {.it_value = {.tv_usec = 20000}};
            setitimer(ITIMER_REAL, &timer, NULL);
            static char bytes[LENGTH - PAGE];
            for (;;) check(pwrite(fd, bytes, sizeof bytes, PAGE) == sizeof bytes, "pwrite");
        }
        int status;
        check(waitpid(child, &status, 0) == child, "waitpid");
        char buffer[16] = "";
        int fd = open("handler", O_RDONLY);
        check(read(fd, buffer, 14) == 14, "read");
        printf("status %d, %s\n", WEXITSTATUS(status), buffer);
        close(fd);
    }
}

int main(int argc, char **argv) {
    check(argc == 2 && chdir(argv[1]) == 0, "chdir");
    /* First those that fork: a child's mappings are its own. */
    killed_after_munmap();
    killed_with_a_lock();
    ends_in_a_handler();
    ends_quickly();
    newer_calls();
    protection();
    cut_off();
    locks();
    too_many_open();
    fixed_and_not();
    appends_of_two_threads();
    cancelled();
    return 0;
}
