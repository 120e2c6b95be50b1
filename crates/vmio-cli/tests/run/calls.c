/* Makes the calls on mapped memory, one after the other, and prints the effect of each, for a comparison with a plain run.
 *
 * usage: calls FOLDER */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64, LENGTH = PAGE * PAGES };

static void check(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

static sigjmp_buf back;
static volatile sig_atomic_t caught;

static void on_fault(int number) {
    caught = number;
    siglongjmp(back, 1);
}

/* The signal in which a load or store of a byte ends; 0 for none. */
static int fault_of(volatile char *at, int stores) {
    caught = 0;
    if (!sigsetjmp(back, 1)) {
        if (stores) *at = 1;
        else (void)*at;
    }
    return caught;
}

static char *map(int fd, size_t length, off_t offset, int protection) {
    char *at = mmap(NULL, length, protection, MAP_SHARED, fd, offset);
    check(at != MAP_FAILED, "mmap");
    return at;
}

static int file(const char *name, size_t length) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0666);
    check(fd >= 0 && ftruncate(fd, length) == 0, name);
    return fd;
}

static void one_file_at_several_addresses(void) {
    int fd = file("several", LENGTH);
    char *a = map(fd, LENGTH, 0, PROT_READ | PROT_WRITE), *b = map(fd, LENGTH, 0, PROT_READ | PROT_WRITE);
    char *c = map(fd, PAGE, 7 * PAGE, PROT_READ);
    say("the addresses differ: %d %d", a != b, c < a || c >= a + LENGTH);
    strcpy(a + 7 * PAGE, "by the first");
    say("%s, %s", b + 7 * PAGE, c);
    strcpy(b + 7 * PAGE + 3, "the second");
    say("%s, %s", a + 7 * PAGE, c);
    say("a store to what is for loads: signal %d", fault_of(c, 1));
    check(munmap(b, LENGTH) == 0, "munmap");
    say("after one is gone: %s", a + 7 * PAGE);
    say("the other is gone: signal %d", fault_of(b, 0));
    check(munmap(a, LENGTH / 2) == 0 && munmap(a + LENGTH / 2, LENGTH / 2) == 0 && munmap(c, PAGE) == 0, "munmap in parts");
    close(fd);
}

static void reads_and_writes_beside(void) {
    int fd = file("beside", LENGTH);
    char *at = map(fd, LENGTH, 0, PROT_READ | PROT_WRITE), buffer[64] = "";
    strcpy(at + 5000, "stored");
    check(pread(fd, buffer, 7, 5000) == 7, "pread");
    say("pread finds what was %s", buffer);
    check(pwrite(fd, "written", 8, 6000) == 8, "pwrite");
    say("a load finds what was %s", at + 6000);
    check(lseek(fd, 100, SEEK_SET) == 100 && write(fd, "ab", 2) == 2 && write(fd, "cd", 3) == 3, "write");
    say("a load finds %s, the position is %ld", at + 100, (long)lseek(fd, 0, SEEK_CUR));
    struct iovec parts[2] = {{"gathered ", 9}, {"bytes", 6}};
    check(pwritev(fd, parts, 2, 200) == 15, "pwritev");
    say("a load finds %s", at + 200);
    memset(buffer, 0, sizeof buffer);
    struct iovec rooms[2] = {{buffer, 4}, {buffer + 10, 11}};
    check(preadv(fd, rooms, 2, 200) == 15, "preadv");
    say("preadv finds %s and %s", buffer, buffer + 10);
    say("at the end: %zd, beyond: %zd", pread(fd, buffer, 64, LENGTH - 5), pread(fd, buffer, 64, LENGTH + 5));
    check(pwrite(fd, "longer", 7, LENGTH + PAGE) == 7, "pwrite beyond the end");
    struct stat stat;
    check(fstat(fd, &stat) == 0, "fstat");
    say("the file has %ld bytes", (long)stat.st_size);
    int other = open("beside", O_RDWR | O_APPEND);
    check(other >= 0 && write(other, "at the end", 11) == 11, "append");
    check(pread(fd, buffer, 18, LENGTH + PAGE) == 18, "pread");
    say("%s, %s", buffer, buffer + 7);
    /* A pointer into the mapping, passed to the kernel: for another file, and for the file itself. */
    int third = file("third", 0);
    check(write(third, at + 6000, 8) == 8 && pread(third, at + 8 * PAGE, 8, 0) == 8, "mapped memory in system calls");
    say("there and back: %s", at + 8 * PAGE);
    check(pwrite(fd, at + 6000, 8, 9 * PAGE) == 8, "from itself to itself");
    say("within: %s", at + 9 * PAGE);
    check(fsync(fd) == 0 && msync(at, LENGTH, MS_SYNC) == 0 && msync(at, PAGE, MS_ASYNC) == 0, "sync");
    close(third), close(other), close(fd);
    check(munmap(at, LENGTH) == 0, "munmap");
}

static void lengths(void) {
    int fd = file("lengths", PAGE + 100);
    char *at = map(fd, LENGTH, 0, PROT_READ | PROT_WRITE);
    memset(at, 'x', PAGE + 100);
    say("behind the end in the last page: %d", at[PAGE + 200]);
    int signal = fault_of(at + 3 * PAGE, 0);
    say("behind the last page: %s", signal == SIGBUS ? "SIGBUS" : "none");
    check(ftruncate(fd, LENGTH) == 0, "ftruncate");
    strcpy(at + 3 * PAGE, "longer now");
    say("%s, and zeros: %d", at + 3 * PAGE, at[PAGE + 200]);
    check(ftruncate(fd, PAGE) == 0 && ftruncate(fd, LENGTH) == 0, "ftruncate");
    say("shorter and longer again: %d %d %c", at[PAGE], at[3 * PAGE], at[PAGE - 1]);
    char *more = mremap(at, LENGTH, 2 * LENGTH, MREMAP_MAYMOVE);
    check(more != MAP_FAILED && ftruncate(fd, 2 * LENGTH) == 0, "mremap");
    strcpy(more + 2 * LENGTH - 10, "the end");
    say("%c %s", more[0], more + 2 * LENGTH - 10);
    check(mremap(more, 2 * LENGTH, PAGE, 0) == more, "mremap to less");
    check(munmap(more, PAGE) == 0, "munmap");
    char end[8];
    check(pread(fd, end, 8, 2 * LENGTH - 10) == 8, "pread");
    say("in the file: %s", end);
    close(fd);
}

static void advice_and_protection(void) {
    int fd = file("advice", LENGTH);
    char *at = map(fd, LENGTH, 0, PROT_READ);
    say("a store: signal %d", fault_of(at, 1));
    check(mprotect(at, LENGTH, PROT_READ | PROT_WRITE) == 0, "mprotect");
    say("a store after mprotect: signal %d", fault_of(at, 1));
    const int advices[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED, MADV_DONTDUMP};
    for (size_t n = 0; n < sizeof advices / sizeof *advices; n++) check(madvise(at, LENGTH, advices[n]) == 0, "madvise");
    say("after MADV_DONTNEED: %d", at[0]);
    check(posix_madvise(at, LENGTH, POSIX_MADV_DONTNEED) == 0, "posix_madvise");
    errno = 0;
    void *bad = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 100);
    say("an offset within a page: %d, %s", bad == MAP_FAILED, strerror(errno));
    int reader = open("advice", O_RDONLY);
    bad = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, reader, 0);
    say("stores to what is open for reading: %d, %s", bad == MAP_FAILED, strerror(errno));
    char *private = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    check(private != MAP_FAILED, "a private mapping");
    private[1] = 5;
    say("private: %d %d", private[0], at[1]);
    check(munmap(private, PAGE) == 0 && munmap(at, LENGTH) == 0, "munmap");
    close(reader), close(fd);
}

static void descriptors_and_locks(void) {
    int fd = file("locks", LENGTH);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char *at = map(fd, LENGTH, 0, PROT_READ | PROT_WRITE);
    check(fcntl(fd, F_SETLK, &lock) == 0, "a lock of the whole file");
    check(munmap(at, LENGTH) == 0, "munmap");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        lock.l_type = F_WRLCK;
        lock.l_len = 1;
        _exit(fcntl(open("locks", O_RDWR), F_SETLK, &lock) == 0 ? 1 : 0);
    }
    int status;
    check(waitpid(child, &status, 0) == child, "waitpid");
    say("the lock is still held after munmap: %d", status == 0);
    at = map(fd, LENGTH, 0, PROT_READ | PROT_WRITE);
    close(fd);
    strcpy(at, "through a mapping");
    say("%s", at);
    check(munmap(at, LENGTH) == 0, "munmap");
    fd = open("locks", O_RDONLY);
    char buffer[32] = "";
    check(fd >= 0 && read(fd, buffer, 18) == 18, "read");
    say("%s", buffer);
    close(fd);
}

static void signals_blocked(void) {
    int fd = file("signals", LENGTH);
    char *at = map(fd, LENGTH, 0, PROT_READ | PROT_WRITE);
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    strcpy(at + 20 * PAGE, "with all signals blocked");
    check(madvise(at, LENGTH, MADV_DONTNEED) == 0, "madvise");
    say("%s", at + 20 * PAGE);
    sigprocmask(SIG_SETMASK, &before, NULL);
    check(munmap(at, LENGTH) == 0, "munmap");
    close(fd);
}

int main(int argc, char **argv) {
    check(argc == 2 && chdir(argv[1]) == 0, "chdir");
    struct sigaction action = {.sa_handler = on_fault};
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);
    one_file_at_several_addresses();
    reads_and_writes_beside();
    lengths();
    advice_and_protection();
    descriptors_and_locks();
    signals_blocked();
    return 0;
}
