// A heap of several threads, a fork with stores on both sides, and the rarer functions. Prints sums that any allocator gives.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, BLOCKS = 4000, BYTES = 2000 };

static void *work(void *number) {
    uint64_t sum = 0;
    unsigned char *blocks[BLOCKS];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = malloc(BYTES);
            memset(blocks[i], (int)(i + (intptr_t)number), BYTES);
        }
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = realloc(blocks[i], BYTES + (size_t)i % 500);
            for (int at = 0; at < BYTES; at++) sum += blocks[i][at];
            free(blocks[i]);
        }
    }
    return (void *)sum;
}

static void check(int is_so, const char *what) {
    if (!is_so) {
        fprintf(stderr, "%s\n", what);
        _exit(1);
    }
}

int main(void) {
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    uint64_t sum = 0;
    for (int i = 0; i < THREADS; i++) {
        void *part;
        pthread_join(threads[i], &part);
        sum += (uint64_t)part;
    }
    printf("%llu\n", (unsigned long long)sum);

    volatile size_t half = SIZE_MAX / 2;
    void *aligned;
    check(posix_memalign(&aligned, 4096, 100) == 0 && (uintptr_t)aligned % 4096 == 0, "posix_memalign");
    check(posix_memalign(&aligned, 3, 100) != 0, "posix_memalign with an odd alignment");
    check((uintptr_t)aligned_alloc(64, 640) % 64 == 0 && (uintptr_t)valloc(5) % 4096 == 0, "aligned_alloc, valloc");
    check(malloc_usable_size(malloc(100)) >= 100, "malloc_usable_size");
    check(reallocarray(NULL, half, 4) == NULL, "reallocarray that overflows");
    char *line = strdup("of the C library");
    line = realloc(line, 1000);
    free(line);
    unsigned char *zeros = calloc(1000, 1000);
    for (int i = 0; i < 1000000; i++) check(zeros[i] == 0, "calloc");

    // The child sees the contents from before the fork, and neither sees the other's later stores.
    FILE *file = tmpfile();
    memset(zeros, 1, 1000000);
    int ready[2];
    check(pipe(ready) == 0, "pipe");
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        char byte;
        check(read(ready[0], &byte, 1) == 1, "read");
        for (int i = 0; i < 1000000; i++) check(zeros[i] == 1, "the child sees a store of its parent's");
        memset(zeros, 3, 1000000);
        char *more = malloc(1000000);
        memset(more, 4, 1000000);
        pid_t grandchild = fork();
        if (grandchild == 0) _exit(more[999999] == 4 && zeros[0] == 3 ? 0 : 1);
        int status;
        check(waitpid(grandchild, &status, 0) == grandchild && status == 0, "the grandchild");
        fclose(file);
        _exit(0);
    }
    memset(zeros, 2, 1000000);
    check(write(ready[1], "x", 1) == 1, "write");
    int status;
    check(waitpid(child, &status, 0) == child && status == 0, "the child");
    for (int i = 0; i < 1000000; i++) check(zeros[i] == 2, "the parent sees a store of its child's");
    check(system("true") == 0, "system");
    puts("forked");
    return 0;
}
