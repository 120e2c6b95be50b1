/* Has a database in place of its standard error output, and uses files before or after that. Usage: said before | after | starts PROGRAM
   | closed. Prints the length of the database, to which it writes nothing. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

static void check(int holds) {
    if (!holds) exit(2);
}

/* Uses a file by a mapping and by calls. */
static void use_file(const char *name) {
    static char page[PAGE];
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    check(fd >= 0 && ftruncate(fd, 8 * PAGE) == 0);
    for (int call = 0; call < 60; call++) {
        check(pwrite(fd, page, PAGE, 0) == PAGE);
        if (call % 20 == 0) usleep(20000);
    }
    volatile char *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(map != MAP_FAILED);
    map[0] = 1;
    check(munmap((void *)map, PAGE) == 0 && close(fd) == 0);
}

static void replace(void) {
    close(2);
    check(open("database", O_RDWR | O_CREAT, 0644) == 2);
}

int main(int count, char **arguments) {
    check(count >= 2);
    if (strcmp(arguments[1], "after") == 0) {
        use_file("first");
        closefrom(3);
        check(close_range(3, ~0U, 0) == 0);
    }
    replace();
    if (count > 2) {
        pid_t process;
        int status;
        char *words[] = {arguments[2], NULL}, *nothing[] = {NULL};
        check(posix_spawn(&process, arguments[2], NULL, NULL, words, nothing) == 0);
        check(waitpid(process, &status, 0) == process && WIFEXITED(status));
    }
    use_file("second");
    struct stat about;
    check(fstat(2, &about) == 0);
    printf("%ld bytes\n", (long)about.st_size);
    return 0;
}
