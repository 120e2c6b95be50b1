/* A forked child closes all open descriptors, and duplicates a file of its own to all their numbers. Usage: reused_numbers map | locked
   | calls. vmio must not take that file for the parent's file with such a number. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* From this number on, vmio keeps descriptors of its own. */
enum { PAGE = 4096, END = 500 };
static sigjmp_buf before;
/* The numbers that the child has. With vmio it cannot have some, if vmio serves the parent's mappings in the child. */
static char has[END];

static void on_sigbus(int signal) {
    (void)signal;
    siglongjmp(before, 1);
}

static void check(int holds, const char *what) {
    if (holds) return;
    perror(what);
    exit(2);
}

static int child(volatile char *map) {
    close_range(3, ~0U, 0);
    int other = open("other", O_RDWR | O_CREAT, 0644);
    check((map ? other >= 3 && other < END : other == 3) && ftruncate(other, 1 << 20) == 0, "other");
    has[other] = 1;
    for (int fd = 3; fd < END; fd++) {
        if (fd == other) continue;
        has[fd] = dup2(other, fd) == fd;
        check(has[fd] || map, "dup2");
    }
    if (map) {
        signal(SIGBUS, on_sigbus);
        check(truncate("data", PAGE) == 0, "truncate");
        if (sigsetjmp(before, 1) == 0) {
            map[PAGE] = 1;
            printf("stored\n");
        }
    } else {
        int data = open("data", O_RDWR);
        check(data >= END && close(data) == 0, "data");
    }
    struct stat about;
    for (int fd = 3; fd < END; fd++) check(!has[fd] || fcntl(fd, F_GETFD) >= 0, "a descriptor is closed");
    check(fstat(other, &about) == 0, "fstat");
    printf("%ld bytes, %ld blocks\n", (long)about.st_size, (long)about.st_blocks);
    fflush(stdout);
    for (int fd = 3; fd < END; fd++) check(!has[fd] || close(fd) == 0, "close");
    return 0;
}

int main(int count, char **arguments) {
    if (count != 2) return 3;
    static char page[PAGE];
    volatile char *map = NULL;
    int data = open("data", O_RDWR | O_CREAT, 0644);
    check(data >= 0 && pwrite(data, page, PAGE, 0) == PAGE && pwrite(data, page, PAGE, PAGE) == PAGE, "data");
    if (strcmp(arguments[1], "calls") == 0) {
        for (int call = 0; call < 100; call++) {
            check(pwrite(data, page, PAGE, 0) == PAGE, "pwrite");
            if (call % 20 == 0) usleep(20000);
        }
    } else {
        if (strcmp(arguments[1], "locked") == 0) {
            /* At vmio's lock range: vmio cannot have this lock, and leaves the program its own. */
            struct flock far = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1L << 62, .l_len = 0};
            struct flock near = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
            int again = open("data", O_RDWR);
            check(again >= 0 && fcntl(again, F_OFD_SETLK, &far) == 0 && fcntl(data, F_SETLK, &near) == 0, "lock");
        }
        map = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, data, 0);
        check(map != MAP_FAILED, "mmap");
        map[0] = 1;
        if (strcmp(arguments[1], "locked") == 0) map = NULL;
    }
    pid_t process = fork();
    if (process == 0) exit(child(map));
    int status;
    check(waitpid(process, &status, 0) == process && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child");
    return 0;
}
