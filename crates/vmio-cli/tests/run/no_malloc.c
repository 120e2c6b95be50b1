/* A handler makes calls that handlers may make, and then ends the process. These calls may have interrupted malloc, so nothing may call
   malloc or free for them. Usage: no_malloc maps | calls. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096 };
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);
/* Whether this thread's allocation may be interrupted; other threads have memory of their own. */
static __thread volatile int is_interrupted;

static void look(void) {
    if (!is_interrupted) return;
    static const char text[] = "malloc or free in a handler\n";
    syscall(SYS_write, 2, text, sizeof text - 1);
    syscall(SYS_exit_group, 99);
}

void *malloc(size_t bytes) {
    look();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    look();
    return __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes) {
    look();
    return __libc_realloc(block, bytes);
}

void free(void *block) {
    if (block) look();
    __libc_free(block);
}

static int data;

static void nothing(int signal) {
    (void)signal;
}

static void handler(int signal) {
    (void)signal;
    is_interrupted = 1;
    char page[PAGE];
    memset(page, 'h', PAGE);
    struct sigaction action = {.sa_handler = nothing};
    if (pwrite(data, page, PAGE, PAGE) != PAGE || pread(data, page, PAGE, 0) != PAGE) _exit(3);
    if (sigaction(SIGBUS, &action, NULL) != 0 || fsync(data) != 0) _exit(4);
    _exit(7);
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    char page[PAGE];
    memset(page, 'm', PAGE);
    data = open("data", O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int call = 0; call < 60; call++) {
        if (pwrite(data, page, PAGE, call % 4 * PAGE) != PAGE) return 5;
        if (call % 20 == 0) usleep(20000);
    }
    if (strcmp(arguments[1], "maps") == 0) {
        volatile char *map = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, data, 0);
        if (map == MAP_FAILED) return 6;
        map[3 * PAGE] = 's';
    }
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    return 8;
}
