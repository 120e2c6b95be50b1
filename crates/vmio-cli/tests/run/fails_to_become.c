/* Uses a file, fails to become another program, and uses another file. Usage: fails_to_become nothing | folder | unknown. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096 };

static int use(const char *name) {
    char page[PAGE];
    memset(page, 'w', PAGE);
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    for (int call = 0; call < 60; call++) {
        if (pwrite(fd, page, PAGE, 0) != PAGE || pread(fd, page, PAGE, 0) != PAGE) return 0;
        if (call % 20 == 0) usleep(20000);
    }
    volatile char *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return 0;
    map[0] = 's';
    return 1;
}

int main(int count, char **arguments) {
    if (count != 2 || !use("first")) return 2;
    mkdir("folder", 0755);
    int fd = open("unknown", O_WRONLY | O_CREAT, 0755);
    if (fd < 0 || write(fd, "neither\n", 8) != 8 || close(fd) != 0) return 3;
    char path[100] = "./";
    execl(strcat(path, arguments[1]), "it", (char *)NULL);
    char *words[] = {"it", NULL}, *nothing[] = {NULL};
    execve(path, words, nothing);
    int expected = strcmp(arguments[1], "nothing") == 0 ? ENOENT : strcmp(arguments[1], "folder") == 0 ? EACCES : ENOEXEC;
    if (errno != expected) return 4;
    return use("second") ? 0 : 5;
}
