/* Goes through a mapped file in one of several ways. Usage: passes FILE loads|stores scan|gather|back|strided. "loads" maps it for loads, "stores" for
   both, and only loads all the same. Prints a sum of what it loaded. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { PAGE = 4096, GATHERED = 1000 };

int main(int count, char **arguments) {
    if (count != 4)
        return 2;
    int stores = !strcmp(arguments[2], "stores");
    int fd = open(arguments[1], stores ? O_RDWR : O_RDONLY);
    struct stat status;
    if (fd < 0 || fstat(fd, &status))
        return 1;
    size_t pages = status.st_size / PAGE;
    int rights = stores ? PROT_READ | PROT_WRITE : PROT_READ;
    unsigned char *map = mmap(NULL, pages * PAGE, rights, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return 1;
    unsigned long sum = 0, random = 88172645463325252ul;
    if (!strcmp(arguments[3], "scan"))
        for (size_t at = 0; at < pages * PAGE; at += 64)
            sum += map[at];
    else if (!strcmp(arguments[3], "back"))
        for (size_t at = pages * PAGE; at > 0; at -= 64)
            sum += map[at - 1];
    else if (!strcmp(arguments[3], "strided"))
        for (size_t page = 0; page < pages; page += 8)
            sum += map[page * PAGE];
    else
        for (int done = 0; done < GATHERED; done++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            sum += map[random % pages * PAGE];
        }
    printf("%lu\n", sum);
    return 0;
}
