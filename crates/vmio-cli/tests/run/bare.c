/* Starts or becomes a program in a way that an interception easily misses. Usage: bare CALL PROGRAM. The exit status is the program's,
   or the number of the error. Prints the number of a spawned process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count != 3) return 2;
    const char *call = arguments[1], *program = arguments[2];
    const char *slash = strrchr(program, '/'), *name = slash + 1;
    char *words[] = {(char *)program, NULL}, *nothing[] = {NULL}, folder[4096], folders[8300];
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - program), program);
    if (strcmp(call, "execve") == 0) execve(program, words, nothing);
    else if (strcmp(call, "execvpe") == 0) execvpe(program, words, nothing);
    else if (strcmp(call, "execle") == 0) execle(program, "0", "1", "2", "3", "4", "5", "6", NULL, nothing);
    else if (strcmp(call, "fexecve") == 0) fexecve(open(program, O_RDONLY | O_CLOEXEC), words, nothing);
    else if (strcmp(call, "execveat") == 0) execveat(open(folder, O_PATH), name, words, nothing, 0);
    else if (strcmp(call, "execv") == 0) {
        clearenv();
        execv(program, words);
    } else if (strcmp(call, "posix_spawn") == 0) {
        pid_t child;
        int status, error = posix_spawn(&child, program, NULL, NULL, words, nothing);
        if (error != 0) return error;
        printf("%d\n", (int)child);
        return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 99;
    } else if (strcmp(call, "path") == 0) {
        /* With a descriptor that is open with O_PATH. */
        extern char **environ;
        fexecve(open(program, O_PATH | O_CLOEXEC), words, environ);
    } else if (strcmp(call, "folder") == 0) {
        /* An earlier folder of PATH has a folder with the program's name. */
        snprintf(folders, sizeof folders, "%s/before/%s", folder, name);
        mkdir("before", 0755);
        mkdir(folders, 0755);
        snprintf(folders, sizeof folders, "%s/before:%s", folder, folder);
        setenv("PATH", folders, 1);
        execvp(name, words);
    } else if (strcmp(call, "unset") == 0) {
        unsetenv("PATH");
        unsetenv("LD_PRELOAD");
        execvp("true", words);
    } else return 3;
    return errno;
}
