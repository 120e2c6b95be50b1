/* Random loads and stores of pages of a mapped file, by threads, for some seconds: an ordinary program, for `vmio run`.
 *
 * usage: random FILE THREADS SECONDS PERCENT_STORES */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock_and_numbers.h"

enum { PAGE = 4096, THREADS_MAX = 64 };

static unsigned char *map;
static uint64_t pages;
static unsigned percent_stores;
static atomic_int is_over;

struct worker {
    pthread_t thread;
    uint64_t state, operations, sum, slowest_ns;
} __attribute__((aligned(128)));

static struct worker workers[THREADS_MAX];

static void *work(void *argument) {
    struct worker *self = argument;
    for (uint64_t began = now_ns(), ended; !atomic_load_explicit(&is_over, memory_order_relaxed); began = ended) {
        uint64_t number = next(&self->state);
        volatile uint64_t *word = (volatile uint64_t *)(map + (number >> 16) % pages * PAGE) + number % 512;
        if ((number >> 9) % 100 < percent_stores) *word = number;
        else self->sum += *word;
        self->operations++;
        ended = now_ns();
        if (ended - began > self->slowest_ns) self->slowest_ns = ended - began;
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) return 64;
    int threads = atoi(argv[2]), seconds = atoi(argv[3]);
    percent_stores = atoi(argv[4]);
    struct stat stat;
    int fd = open(argv[1], O_RDWR);
    if (threads < 1 || threads > THREADS_MAX || fd < 0 || fstat(fd, &stat)) return perror(argv[1]), 1;
    map = mmap(NULL, stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return perror("mmap"), 1;
    madvise(map, stat.st_size, MADV_RANDOM);
    pages = stat.st_size / PAGE;
    uint64_t began = now_ns();
    for (int n = 0; n < threads; n++) {
        workers[n].state = n + 1;
        if ((errno = pthread_create(&workers[n].thread, NULL, work, &workers[n]))) return perror("thread"), 1;
    }
    sleep(seconds);
    atomic_store(&is_over, 1);
    uint64_t operations = 0, slowest_ns = 0, ignored = 0;
    for (int n = 0; n < threads; n++) {
        pthread_join(workers[n].thread, NULL);
        operations += workers[n].operations;
        ignored += workers[n].sum;
        if (workers[n].slowest_ns > slowest_ns) slowest_ns = workers[n].slowest_ns;
    }
    double took = (now_ns() - began) / 1e9;
    printf("%d threads, %u %% stores: %.0f operations/s, slowest %.1f ms%s\n", threads, percent_stores,
           operations / took, slowest_ns / 1e6, ignored == 1 ? "." : "");
    return 0;
}
