/* A vfork child opens a file, and writes to it and to one that its parent has opened; later the parent does: vforked INHERITED OWN
   LATER. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **names) {
    if (count != 4)
        return 1;
    volatile int inherited = open(names[1], O_RDWR | O_CREAT, 0644);
    pid_t child = vfork();
    if (child == 0) {
        int own = open(names[2], O_RDWR | O_CREAT, 0644);
        _exit(own < 0 || write(own, "child", 5) != 5 || write(inherited, "child ", 6) != 6);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        return 2;
    int later = open(names[3], O_RDWR | O_CREAT, 0644);
    return later < 0 || write(later, "parent", 6) != 6 || write(inherited, "parent", 6) != 6 ? 3 : 0;
}
