/* Uses a file, and becomes a daemon. A reader of its standard error output does not have to wait for the daemon's end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096 };

int main(void) {
    char page[PAGE];
    memset(page, 'w', PAGE);
    int fd = open("data", O_RDWR | O_CREAT, 0644), output = dup(1);
    if (fd < 0 || ftruncate(fd, 2 * PAGE) != 0) return 2;
    for (int call = 0; call < 60; call++) {
        if (pwrite(fd, page, PAGE, PAGE) != PAGE) return 3;
        if (call % 20 == 0) usleep(20000);
    }
    volatile char *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return 4;
    map[0] = 's';
    if (daemon(0, 0) != 0) return 5;
    struct stat null, stream;
    char folder[PAGE];
    int is_one = getcwd(folder, sizeof folder) && strcmp(folder, "/") == 0 && getsid(0) == getpid() && stat("/dev/null", &null) == 0;
    for (int number = 0; number < 3; number++)
        is_one = is_one && fstat(number, &stream) == 0 && stream.st_rdev == null.st_rdev;
    dprintf(output, is_one ? "the daemon has ended\n" : "it is no daemon\n");
    return 0;
}
