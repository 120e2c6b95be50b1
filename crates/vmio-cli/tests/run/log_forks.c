/* Forks while another thread's write creates a log: log_forks FILE. No child has a file of the log open. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_SECONDS = 20, FORKS_AFTER = 20 };

static const char *path;
static atomic_int is_written;

static void check(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(2);
    }
}

static void *writer(void *unused) {
    /* Two opens, so that the file cannot be leased: its writes are logged one by one. */
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    int again = open(path, O_RDWR);
    check(fd >= 0 && again >= 0, "open");
    check(pwrite(fd, "logged", 6, 0) == 6, "pwrite");
    is_written = 1;
    return unused;
}

static void child(void) {
    alarm(LIMIT_SECONDS);
    DIR *open_files = opendir("/proc/self/fd");
    check(open_files != NULL, "opendir");
    struct dirent *entry;
    while ((entry = readdir(open_files)) != NULL) {
        char target[4096];
        ssize_t length = readlinkat(dirfd(open_files), entry->d_name, target, sizeof target - 1);
        if (length < 0) continue;
        target[length] = 0;
        if (strstr(target, "/.vmio") != NULL) {
            fprintf(stderr, "a child has %s open\n", target);
            _exit(1);
        }
    }
    _exit(0);
}

int main(int count, char **arguments) {
    check(count == 2, "one argument");
    path = arguments[1];
    pthread_t thread;
    check(pthread_create(&thread, NULL, writer, NULL) == 0, "pthread_create");
    int failures = 0;
    for (int left = FORKS_AFTER; left > 0;) {
        if (is_written) left--;
        pid_t forked = fork();
        check(forked >= 0, "fork");
        if (forked == 0) child();
        int status;
        check(waitpid(forked, &status, 0) == forked, "waitpid");
        failures += status != 0;
    }
    check(pthread_join(thread, NULL) == 0, "pthread_join");
    return failures != 0;
}
