/* Closes, duplicates and opens files without the C library's names, as libuv (close by syscall), Go and other runtimes (instructions of
   their own) do. Usage: raw_calls FOLDER HOW CLOSE_WITH OPEN_WITH PAUSE_US, where CLOSE_WITH and OPEN_WITH are library, syscall or
   instruction. Prints its findings, which are the same without vmio. HOW says what happens to the first file's number. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 256 };

static char buffer[PAGE];

static long by_instruction(long number, long a, long b, long c, long d) {
    long result;
#if defined(__x86_64__)
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
#else
    register long code __asm__("x8") = number, first __asm__("x0") = a, second __asm__("x1") = b;
    register long third __asm__("x2") = c, fourth __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(code), "r"(second), "r"(third), "r"(fourth) : "memory");
    result = first;
#endif
    return result;
}

static long call(const char *with, long number, long a, long b, long c, long d) {
    return strcmp(with, "syscall") == 0 ? syscall(number, a, b, c, d) : by_instruction(number, a, b, c, d);
}

static void close_with(const char *with, int fd) {
    if ((strcmp(with, "library") == 0 ? close(fd) : call(with, SYS_close, fd, 0, 0, 0)) != 0) perror("close");
}

static int open_with(const char *with, const char *path) {
    if (strcmp(with, "library") == 0) return open(path, O_RDWR);
    return call(with, SYS_openat, AT_FDCWD, (long)path, O_RDWR, 0);
}

/* Counts wrong pages in the kernel's view of a file, without the C library's names. */
static int wrong_pages(const char *path, char wanted) {
    int fd = by_instruction(SYS_openat, AT_FDCWD, (long)path, O_RDONLY, 0), wrong = 0;
    for (long page = 0; page < PAGES; page++) {
        long count = by_instruction(SYS_pread64, fd, (long)buffer, PAGE, page * PAGE);
        wrong += count != PAGE || buffer[0] != wanted || buffer[PAGE - 1] != wanted;
    }
    by_instruction(SYS_close, fd, 0, 0, 0);
    return wrong;
}

static void fill(const char *path, char with) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    memset(buffer, with, PAGE);
    for (int page = 0; page < PAGES; page++)
        if (write(fd, buffer, PAGE) != PAGE) perror("write");
    close(fd);
}

/* Reads enough for a lease of the file. */
static void get_leased(int fd) {
    for (int n = 0; n < 64; n++)
        if (pread(fd, buffer, PAGE, (long)n * PAGE) != PAGE) perror("pread");
    usleep(80000);
    if (pread(fd, buffer, PAGE, 0) != PAGE) perror("pread");
}

static void overwrite(int fd, char with) {
    memset(buffer, with, PAGE);
    for (int page = 0; page < PAGES; page++)
        if (pwrite(fd, buffer, PAGE, (long)page * PAGE) != PAGE) {
            perror("pwrite");
            return;
        }
}

int main(int count, char **arguments) {
    if (count != 6) return 2;
    int pause_us = atoi(arguments[5]);
    const char *how = arguments[2], *close_by = arguments[3], *open_by = arguments[4];
    char first[4096], second[4096];
    snprintf(first, sizeof first, "%s/first", arguments[1]);
    snprintf(second, sizeof second, "%s/second", arguments[1]);
    fill(first, 'a');
    fill(second, 'b');
    int fd = open(first, O_RDWR);
    get_leased(fd);
    overwrite(fd, '1');
    if (strcmp(how, "close") == 0) {
        close_with(close_by, fd);
        int again = open_with(open_by, second);
        usleep(pause_us);
        if (pread(again, buffer, PAGE, 0) != PAGE || buffer[0] != 'b') printf("the second file reads %c\n", buffer[0]);
        get_leased(again);
        overwrite(again, '2');
        if (fsync(again) != 0) perror("fsync");
        close_with(close_by, again);
    } else if (strcmp(how, "replace") == 0) {
        int other = open_with(open_by, second);
        if (strcmp(close_by, "library") == 0) dup2(other, fd);
        else call(close_by, SYS_dup3, other, fd, 0, 0);
        usleep(pause_us);
        overwrite(fd, '2');
        close_with(close_by, other);
        close_with(close_by, fd);
    } else if (strcmp(how, "range") == 0) {
        if (strcmp(close_by, "library") == 0) close_range(fd, ~0U, 0);
        else call(close_by, SYS_close_range, fd, ~0U, 0, 0);
        int again = open_with(open_by, second);
        overwrite(again, '2');
        close_with(close_by, again);
    } else if (strcmp(how, "fork") == 0) {
        fflush(stdout);
        int child = strcmp(close_by, "library") == 0 ? fork() : call(close_by, SYS_clone, SIGCHLD, 0, 0, 0);
        if (child == 0) {
            int other = open(second, O_RDWR);
            overwrite(other, '2');
            close(other);
            _exit(lseek(fd, 10, SEEK_SET) != 10);
        }
        int status;
        waitpid(child, &status, 0);
        printf("the child ends with %d, and leaves the position at %ld\n", status, (long)lseek(fd, 0, SEEK_CUR));
        close_with(close_by, fd);
    } else if (strcmp(how, "lock") == 0) {
        /* The descriptor's lock ends with it, within a while. */
        flock(fd, LOCK_EX);
        close_with(close_by, fd);
        int again = open(first, O_RDONLY), tries = 0;
        while (flock(again, LOCK_EX | LOCK_NB) != 0 && tries++ < 500) usleep(10000);
        printf("the lock is %s\n", tries < 500 ? "had" : "not to be had");
        close(again);
        overwrite(open_with(open_by, second), '2');
    } else {
        return 2;
    }
    printf("%d and %d pages are wrong\n", wrong_pages(first, '1'), wrong_pages(second, '2'));
    return 0;
}
