/* Starts or becomes a program by one of the calls for that. Usage: becomes CALL PROGRAM. The exit status is the program's, or the number
   of the error. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int status_of(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) return 99;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    const char *call = arguments[1], *program = arguments[2];
    const char *slash = strrchr(program, '/'), *name = slash + 1;
    char *words[] = {(char *)program, NULL}, folder[4096];
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - program), program);
    setenv("PATH", folder, 1);
    pid_t child = -1;
    int error = 0;
    if (strcmp(call, "execve") == 0) execve(program, words, environ);
    else if (strcmp(call, "execv") == 0) execv(program, words);
    else if (strcmp(call, "execvp") == 0) execvp(name, words);
    else if (strcmp(call, "execvpe") == 0) execvpe(name, words, environ);
    else if (strcmp(call, "execl") == 0) execl(program, program, NULL);
    else if (strcmp(call, "execle") == 0) execle(program, program, NULL, environ);
    else if (strcmp(call, "execlp") == 0) execlp(name, program, NULL);
    else if (strcmp(call, "fexecve") == 0) fexecve(open(program, O_RDONLY | O_CLOEXEC), words, environ);
    else if (strcmp(call, "execveat") == 0) execveat(open(folder, O_PATH), name, words, environ, 0);
    else if (strcmp(call, "syscall") == 0) syscall(SYS_execve, program, words, environ);
    else if (strcmp(call, "posix_spawn") == 0) error = posix_spawn(&child, program, NULL, NULL, words, environ);
    else if (strcmp(call, "posix_spawnp") == 0) error = posix_spawnp(&child, name, NULL, NULL, words, environ);
    else if (strcmp(call, "system") == 0) {
        int status = system(program);
        return WEXITSTATUS(status);
    } else if (strcmp(call, "vfork") == 0) {
        child = vfork();
        if (child == 0) {
            execve(program, words, environ);
            _exit(errno);
        }
    } else return 3;
    if (error != 0) return error;
    return child > 0 ? status_of(child) : errno;
}
