/* Maps a file several times as large as the cache, and lets threads store to it and load from it; prints the result.
 *
 * usage: threads FILE MIBYTES
 *
 * Every word contains its place and the number of stores to it, so no store can be lost or misplaced unnoticed. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 8, ROUNDS = 2, PAGE = 4096 };

static unsigned char *map;
static size_t pages;

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t *word(size_t page, unsigned place) { return (uint64_t *)(map + page * PAGE) + place; }

static uint64_t expected(size_t page, unsigned place, unsigned round) { return page * 1000003 + place * 101 + round + 1; }

/* Thread n has the pages n, n + THREADS and so on: every page's neighbours belong to other threads. */
static void *work(void *argument) {
    size_t first = (size_t)argument;
    for (unsigned round = 0; round < ROUNDS; round++)
        for (size_t page = first; page < pages; page += THREADS)
            for (unsigned place = 0; place < PAGE / 8; place += 37) {
                uint64_t *at = word(page, place), before = round ? expected(page, place, round - 1) : 0;
                if (*at != before) {
                    fprintf(stderr, "page %zu place %u: %" PRIu64 " in round %u\n", page, place, *at, round);
                    exit(2);
                }
                *at = expected(page, place, round);
            }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) return 64;
    size_t length = strtoull(argv[2], NULL, 10) << 20;
    pages = length / PAGE;
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || ftruncate(fd, length)) die("open");
    map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) die("mmap");
    close(fd); /* The mapping outlives it. */
    pthread_t threads[THREADS];
    for (size_t n = 0; n < THREADS; n++)
        if ((errno = pthread_create(&threads[n], NULL, work, (void *)n))) die("pthread_create");
    for (size_t n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
    if (msync(map, length, MS_SYNC)) die("msync");
    uint64_t sum = 0;
    for (size_t page = 0; page < pages; page++)
        for (unsigned place = 0; place < PAGE / 8; place++) sum = sum * 31 + *word(page, place);
    if (munmap(map, length)) die("munmap");
    printf("%zu pages, %016" PRIx64 "\n", pages, sum);
    return 0;
}
