/* A forked child closes what it finds open, and has all those numbers for one file of its own. Usage: reused_numbers map | locked | calls. What its parent
   had open by such a number is not that file. */
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

/* vmio keeps some of its own from here on. */
enum { PAGE = 4096, END = 500 };
static sigjmp_buf before;
/* Which numbers the child has: with vmio some are not to be had, where it looks after what the parent has mapped. */
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
            /* Where vmio locks files: it cannot have this one, and leaves the program its lock. */
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
