// Appends records to a log, and so does the handler of a timer: usage: appends_in_handlers PATH HANDLED. Prints how many records each has appended.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { RECORD = 4096, ALONE = 2000 };

static int fd;
static int wanted;
static volatile sig_atomic_t handled;

static void append(char with) {
    char record[RECORD];
    memset(record, with, sizeof record);
    record[RECORD - 1] = '\n';
    if (write(fd, record, sizeof record) != sizeof record) {
        perror("write");
        _exit(3);
    }
}

static void start_timer(void) {
    struct itimerval once = {{0, 0}, {0, 3000}};
    if (setitimer(ITIMER_REAL, &once, NULL) != 0) _exit(4);
}

static void on_timer(int number) {
    int error = errno;
    (void)number;
    append('H');
    if (++handled < wanted) start_timer();
    errno = error;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    wanted = atoi(arguments[2]);
    fd = open(arguments[1], O_RDWR | O_CREAT | O_APPEND, 0600);
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    if (fd < 0 || sigaction(SIGALRM, &action, NULL) != 0) return 1;
    long appended = 0;
    for (; appended < ALONE; appended++) {
        append('M');
        // The thread that takes the lease has no time of its own on a busy machine.
        if (appended < 100) usleep(1000);
    }
    start_timer();
    for (; handled < wanted; appended++) append('M');
    for (long last = appended + ALONE; appended < last; appended++) append('M');
    printf("%ld %d\n", appended, (int)handled);
    return 0;
}
