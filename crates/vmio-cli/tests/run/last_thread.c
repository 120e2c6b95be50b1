/* The first thread ends before the others. Usage: last_thread [cancelled | forked]. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

enum { PAGE = 4096 };
static volatile char *map;
static int data;
static pthread_t first;

static void at_exit(void) {
    printf("at exit\n");
}

static void use(int stands_for) {
    char page[PAGE];
    memset(page, stands_for, PAGE);
    for (int call = 0; call < 50; call++)
        if (pwrite(data, page, PAGE, PAGE) != PAGE) exit(2);
}

static int later(void *nothing) {
    (void)nothing;
    usleep(200000);
    map[1] = 'l';
    use('l');
    return 0;
}

static void *second(void *cancels) {
    if (cancels) pthread_cancel(first);
    usleep(200000);
    map[0] = 's';
    use('s');
    thrd_t thread;
    if (thrd_create(&thread, later, NULL) != thrd_success) exit(2);
    return NULL;
}

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "";
    data = open("data", O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (data < 0 || ftruncate(data, 2 * PAGE) != 0) return 3;
    use('f');
    map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, data, 0);
    if (map == MAP_FAILED) return 4;
    map[2] = 'f';
    if (strcmp(how, "forked") == 0) {
        pid_t child = fork();
        if (child != 0) {
            int status;
            return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 5;
        }
        data = open("childs", O_RDWR | O_CREAT | O_TRUNC, 0644);
        if (data < 0 || ftruncate(data, 2 * PAGE) != 0) return 3;
        map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, data, 0);
        if (map == MAP_FAILED) return 4;
    }
    atexit(at_exit);
    setvbuf(stdout, NULL, _IONBF, 0);
    first = pthread_self();
    int cancelled = strcmp(how, "cancelled") == 0;
    pthread_t thread;
    if (pthread_create(&thread, NULL, second, cancelled ? &cancelled : NULL) != 0) return 6;
    for (; cancelled;) pause();
    pthread_exit(NULL);
}
