/* Goes through a mapped file that is larger than the cache, until it has made as many rounds as are wanted: a debugger may change that number.
 *
 * usage: debugged FILE ROUNDS [abort | segv] */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 2500 };

static volatile unsigned char *map;
static volatile long rounds, wanted, nowhere = 8;

static __attribute__((noinline)) void go_round(void) {
    for (size_t page = 0; page < PAGES; page++) {
        if (map[page * PAGE] != (unsigned char)rounds) exit(2);
        map[page * PAGE]++;
    }
    rounds++;
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    wanted = atol(argv[2]);
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || ftruncate(fd, PAGES * PAGE)) return 1;
    map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return 1;
    puts("begun");
    fflush(stdout);
    while (rounds != wanted) go_round();
    if (argc > 3 && !strcmp(argv[3], "abort")) abort();
    if (argc > 3) *(volatile int *)nowhere = 1;
    puts("all rounds are made");
    return 0;
}
