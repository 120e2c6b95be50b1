/* Goes through a mapped file in one of several ways. Usage: passes FILE loads|stores
   scan|gather|back|strided|after|beside|update|dropped|unmapped|sampled.
   "loads" maps the file for loads and "stores" for both. With either it only loads, except that "update" adds to a byte of each page,
   three times, and "dropped" and "unmapped" do so once. Prints a sum of the loaded bytes.
   "dropped" scans a MiB at a time, and then advises Linux to drop it; "unmapped" unmaps it. "sampled" looks at 64 KiB of every 2 MiB,
   and unmaps them.
   "after" scans, and then a child does; "beside": two children scan at the same time. Each prints its sum. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, GATHERED = 1000, PART = 1 << 20, SAMPLE = 64 << 10 };

static unsigned long scan(const unsigned char *map, size_t bytes) {
    unsigned long sum = 0;
    for (size_t at = 0; at < bytes; at += 64)
        sum += map[at];
    return sum;
}

/* Starts children that scan the file a few times. */
static int fork_children(const unsigned char *map, size_t bytes, int children) {
    for (int child = 0; child < children; child++) {
        pid_t process = fork();
        if (process < 0)
            return 1;
        if (process == 0) {
            for (int pass = 0; pass < 3; pass++)
                printf("%lu\n", scan(map, bytes));
            fflush(stdout);
            _exit(0);
        }
    }
    return 0;
}

static int children_failed(int children) {
    int status, failed = 0;
    while (children-- > 0)
        failed |= wait(&status) < 0 || status != 0;
    return failed;
}

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
        sum = scan(map, pages * PAGE);
    else if (!strcmp(arguments[3], "after")) {
        sum = scan(map, pages * PAGE);
        if (fork_children(map, pages * PAGE, 1) || children_failed(1))
            return 1;
        sum += scan(map, pages * PAGE);
    } else if (!strcmp(arguments[3], "beside")) {
        if (fork_children(map, pages * PAGE, 2))
            return 1;
        sum = scan(map, pages * PAGE);
        if (children_failed(2))
            return 1;
    }
    else if (!strcmp(arguments[3], "dropped") || !strcmp(arguments[3], "unmapped") || !strcmp(arguments[3], "sampled")) {
        int is_sampled = arguments[3][0] == 's', is_unmapped = arguments[3][0] == 'u';
        for (size_t at = 0; at < pages * PAGE; at += is_sampled ? 2 * PART : PART) {
            size_t bytes = is_sampled ? SAMPLE : PART;
            bytes = pages * PAGE - at < bytes ? pages * PAGE - at : bytes;
            for (size_t byte = at; stores && byte < at + bytes; byte += PAGE)
                map[byte]++;
            sum += scan(map + at, bytes);
            if (is_unmapped ? munmap(map + at, bytes) : madvise(map + at, bytes, MADV_DONTNEED))
                return 1;
        }
    } else if (!strcmp(arguments[3], "back"))
        for (size_t at = pages * PAGE; at > 0; at -= 64)
            sum += map[at - 1];
    else if (!strcmp(arguments[3], "update")) {
        for (int pass = 0; pass < 3; pass++)
            for (size_t page = 0; page < pages; page++)
                sum += map[page * PAGE + pass]++;
    } else if (!strcmp(arguments[3], "strided"))
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
