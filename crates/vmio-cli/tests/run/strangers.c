/* Uses one file by two descriptors while another process writes to it, cuts it and makes it longer. Compares each answer with a model in memory. vmio
   knows nothing of the other process, unless there is a fourth argument.
 *
 * usage: strangers FILE SEED CALLS [with-vmio] */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 300000, LONGEST = 20000 };

struct order {
    char what; /* r, w, a, c */
    unsigned char byte;
    off_t at;
    size_t length;
};

static unsigned char model[MOST], buffer[LONGEST];
static off_t length;
static unsigned seed;

static void check(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static size_t below(size_t limit) { return limit ? (size_t)rand_r(&seed) % limit : 0; }

static void all(ssize_t (*call)(int, void *, size_t), int fd, void *bytes, size_t count) {
    for (size_t done = 0; done < count;) {
        ssize_t some = call(fd, (char *)bytes + done, count - done);
        if (some == 0) exit(0);
        check(some > 0, "pipe");
        done += some;
    }
}

static ssize_t put(int fd, void *bytes, size_t count) { return write(fd, bytes, count); }

/* The other process does as it is told. */
static void obey(const char *path) {
    int fd = open(path, O_RDWR), appending = open(path, O_WRONLY | O_APPEND);
    check(fd >= 0 && appending >= 0, path);
    for (;;) {
        struct order order;
        all(read, 0, &order, sizeof order);
        ssize_t done = 0;
        memset(buffer, order.byte, order.length);
        if (order.what == 'r') done = pread(fd, buffer, order.length, order.at);
        if (order.what == 'w') done = pwrite(fd, buffer, order.length, order.at);
        if (order.what == 'a') done = write(appending, buffer, order.length);
        if (order.what == 'c') done = ftruncate(fd, order.at);
        all(put, 1, &done, sizeof done);
        if (order.what == 'r' && done > 0) all(put, 1, buffer, done);
    }
}

static int to, from;

static ssize_t told(struct order order) {
    ssize_t done;
    all(put, to, &order, sizeof order);
    all(read, from, &done, sizeof done);
    if (order.what == 'r' && done > 0) all(read, from, buffer, done);
    return done;
}

static void start(const char *path, int is_stranger) {
    int there[2], back[2];
    check(pipe2(there, O_CLOEXEC) == 0 && pipe2(back, O_CLOEXEC) == 0, "pipe");
    if (fork() == 0) {
        dup2(there[0], 0), dup2(back[1], 1);
        if (is_stranger) unsetenv("LD_PRELOAD"), unsetenv("VMIO_RUN_UNDER");
        execl("/proc/self/exe", "stranger", path, NULL);
        _exit(127);
    }
    close(there[0]), close(back[1]);
    to = there[1], from = back[0];
}

static void is_as_modelled(ssize_t read, off_t at, size_t wanted, const char *who) {
    off_t there = at < length ? length - at : 0;
    ssize_t expected = (off_t)wanted < there ? (off_t)wanted : there;
    if (read != expected || memcmp(buffer, model + at, expected) != 0) {
        off_t differs = 0;
        while (differs < expected && differs < read && buffer[differs] == model[at + differs]) differs++;
        fprintf(stderr, "%s read %zd of %zu bytes at %ld of %ld, not %zd; byte %ld differs\n", who, read, wanted, (long)at, (long)length,
                expected, (long)(at + differs));
        exit(1);
    }
}

static void stored(off_t at, size_t count, unsigned char byte) {
    memset(model + at, byte, count);
    if (at + (off_t)count > length) length = at + count;
}

int main(int argc, char **argv) {
    if (argc == 2) obey(argv[1]);
    if (argc != 4 && argc != 5) return 64;
    int fds[3] = {open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600), -1, -1};
    check(fds[0] >= 0, argv[1]);
    start(argv[1], argc == 4);
    fds[1] = open(argv[1], O_RDWR), fds[2] = open(argv[1], O_RDWR | O_APPEND);
    check(fds[1] >= 0 && fds[2] >= 0, argv[1]);
    seed = atoi(argv[2]);
    for (int call = 0; call < atoi(argv[3]); call++) {
        unsigned char byte = 1 + below(255);
        off_t at = below(below(4) ? length + 5000 : MOST - LONGEST);
        size_t count = 1 + below(below(3) ? 6000 : LONGEST);
        if (at + count > MOST) at = MOST - count;
        int fd = fds[below(2)];
        switch (below(12)) {
        case 0: case 1: case 2:
            is_as_modelled(pread(fd, buffer, count, at), at, count, "the program");
            break;
        case 3:
            check(lseek(fd, at, SEEK_SET) == at, "lseek");
            is_as_modelled(read(fd, buffer, count), at, count, "the program");
            break;
        case 4: case 5:
            memset(buffer, byte, count);
            check(pwrite(fd, buffer, count, at) == (ssize_t)count, "pwrite");
            stored(at, count, byte);
            break;
        case 6:
            if (length + (off_t)count > MOST) break;
            memset(buffer, byte, count);
            check(write(fds[2], buffer, count) == (ssize_t)count, "append");
            stored(length, count, byte);
            break;
        case 7:
            is_as_modelled(told((struct order){'r', 0, at, count}), at, count, "the stranger");
            break;
        case 8:
            check(told((struct order){'w', byte, at, count}) == (ssize_t)count, "the stranger's pwrite");
            stored(at, count, byte);
            break;
        case 9:
            if (length + (off_t)count > MOST) break;
            check(told((struct order){'a', byte, 0, count}) == (ssize_t)count, "the stranger's append");
            stored(length, count, byte);
            break;
        case 10: case 11: {
            /* Often a little, within a block. */
            off_t less = below(length < 3000 ? length + 1 : 3000), cut = below(3) ? length - less : (off_t)below(length + 5000);
            if (cut > MOST) cut = MOST;
            if (below(8)) check(told((struct order){'c', 0, cut, 0}) == 0, "the stranger's ftruncate");
            else check(ftruncate(fd, cut) == 0, "ftruncate");
            if (cut > length) memset(model + length, 0, cut - length);
            else memset(model + cut, 0, length - cut);
            length = cut;
            struct stat stat;
            check(fstat(fd, &stat) == 0 && stat.st_size == length, "fstat");
            break;
        }
        }
    }
    puts("all as modelled");
    return 0;
}
