/* Prints the results of lockf beside locks of another process, for loads and for stores. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    int fd = open("locked", O_RDWR | O_CREAT, 0644);
    for (int kind = 0; kind < 2; kind++) {
        struct flock lock = {.l_type = kind ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 10};
        if (fcntl(fd, F_SETLK, &lock) != 0) return 2;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            for (int at = 0; at < 40; at += 10)
                for (int command = F_TLOCK; command <= F_TEST; command++)
                    for (int length = -10; length <= 10; length += 10) {
                        lseek(fd, at, SEEK_SET);
                        errno = 0;
                        int status = lockf(fd, command, length);
                        printf("%d, %d at %d, %d: %d, %d\n", kind, command, at, length, status, errno);
                        struct flock none = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
                        fcntl(fd, F_SETLK, &none);
                    }
            fflush(stdout);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    return 0;
}
