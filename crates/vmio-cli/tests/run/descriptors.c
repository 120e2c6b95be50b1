/* Works on the descriptors of a file with many reads and writes. Usage: descriptors CASE. Prints the contents of the working directory,
   which are the same without vmio. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64 };

static unsigned page[PAGE / sizeof(unsigned)];

/* Closes a descriptor without the C library's names. */
static void close_unnoticed(int fd) {
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"((long)SYS_close), "D"((long)fd) : "rcx", "r11", "memory");
#else
    register long code __asm__("x8") = SYS_close, first __asm__("x0") = fd;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(code) : "memory");
#endif
}

/* Makes a file in which each page has its number. */
static int made(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int at = 0; at < PAGES; at++) {
        for (unsigned word = 0; word < PAGE / sizeof *page; word++) page[word] = at;
        if (write(fd, page, PAGE) != PAGE) abort();
    }
    fsync(fd);
    return fd;
}

/* Reads and writes enough for a lease of the file, and for stores to it. */
static void get_leased(int fd) {
    for (int round = 0; round < 4; round++) {
        for (int at = 0; at < 10; at++)
            if (pread(fd, page, PAGE, at * PAGE) != PAGE) abort();
        usleep(20000);
    }
    memset(page, 'w', PAGE);
    for (int at = 0; at < 64; at++)
        if (pwrite(fd, page, PAGE, 0) != PAGE) abort();
}

static unsigned first_word(int fd, int at) {
    page[0] = 99;
    if (pread(fd, page, PAGE, at * PAGE) != PAGE) return 98;
    return page[0];
}

/* Checks that two descriptors of one open file have one position, and see the same bytes. */
static void are_one(const char *how, int fd, int duplicate) {
    lseek(fd, 5 * PAGE, SEEK_SET);
    page[0] = 99;
    if (read(duplicate, page, PAGE) != PAGE) perror("read");
    printf("%s: page %u of 5, then at %ld", how, page[0], (long)lseek(fd, 0, SEEK_CUR) / PAGE);
    memset(page, 1, PAGE);
    if (pwrite(fd, page, PAGE, 7 * PAGE) != PAGE) perror("pwrite");
    printf("; %x", first_word(duplicate, 7));
    memset(page, 2, PAGE);
    if (pwrite(duplicate, page, PAGE, 7 * PAGE) != PAGE) perror("pwrite");
    printf(", %x\n", first_word(fd, 7));
}

static void failed(const char *how, int (*call)(int)) {
    int fd = made("data"), duplicate = dup(fd);
    get_leased(fd);
    errno = 0;
    int status = call(duplicate);
    printf("%d: %s\n", status, strerror(errno));
    are_one(how, fd, duplicate);
    close(duplicate);
    get_leased(fd);
    if (write(fd, "end", 3) != 3) perror("write");
    close(fd);
}

static int dup2_of_none(int to) { return dup2(-1, to); }
static int dup3_of_none(int to) { return dup3(-1, to, 0); }
static int dup3_of_no_flags(int to) { return dup3(0, to, 0x40); }
static int range_of_no_flags(int fd) { return close_range(fd, fd, 0x40); }
static int range_by_number(int fd) { return syscall(SYS_close_range, fd, fd, 0x40); }

static void numbered_high(void) {
    struct rlimit limit = {100000, 100000};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        printf("so many descriptors may not be\n");
        return;
    }
    int fd = made("data");
    get_leased(fd);
    int duplicate = fcntl(fd, F_DUPFD, 70000);
    printf("%d\n", duplicate);
    are_one("high", fd, duplicate);
    get_leased(fd);
    if (dup2(fd, 70001) != 70001) perror("dup2");
    are_one("high", fd, 70001);
}

/* A child before exec works on its descriptors. Its parent's stay as they are, though the parent writes enough to a file of the folder
   for a lease. */
static void child_before_exec(void) {
    int outside = open("../outside", O_RDWR | O_CREAT, 0644), fd = made("data"), third = made("third");
    if (write(outside, "a", 1) != 1) perror("write");
    get_leased(fd);
    int writes = PAGES + PAGES + 64;
    for (int how = 0; how < 5; how++) {
        pid_t child = vfork();
        if (child == 0) {
            if (how == 0) dup2(outside, fd);
            else if (how == 1) close(fd);
            else if (how == 2) close_range(3, ~0U, 0);
            else if (how == 3) fcntl(outside, F_DUPFD, 0);
            else { close(third); open("third", O_RDONLY); }
            _exit(0);
        }
        waitpid(child, NULL, 0);
        memset(page, how + 1, PAGE);
        for (int at = 0; at < 20; at++, writes++)
            if (pwrite(fd, page, PAGE, at * PAGE) != PAGE) perror("pwrite");
        printf("%d: %x, third %u\n", how, first_word(fd, 3), first_word(third, 3));
    }
    /* The parent gets the numbers that the child had. */
    int later = made("later");
    get_leased(later);
    are_one("later", later, later);
    printf("%d writes\n", writes + PAGES + 64 + 2);
}

static int sockets[2], passed;

static int by_pipe(void) { int ends[2]; return pipe(ends) == 0 ? ends[0] : -1; }
static int by_pipe2(void) { int ends[2]; return pipe2(ends, O_CLOEXEC) == 0 ? ends[0] : -1; }
static int by_socket(void) { return socket(AF_UNIX, SOCK_STREAM, 0); }
static int by_socketpair(void) { int ends[2]; return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 ? ends[0] : -1; }
static int by_eventfd(void) { return eventfd(0, EFD_NONBLOCK); }
static int by_epoll_create(void) { return epoll_create(1); }
static int by_epoll_create1(void) { return epoll_create1(0); }
static int by_timerfd(void) { return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK); }
static int by_memfd(void) { return memfd_create("memory", 0); }
static int by_inotify(void) { return inotify_init(); }
static int by_inotify1(void) { return inotify_init1(IN_NONBLOCK); }
static int by_syscall(void) { return syscall(SYS_eventfd2, 0, EFD_NONBLOCK); }

static int by_signalfd(void) {
    sigset_t none;
    sigemptyset(&none);
    return signalfd(-1, &none, SFD_NONBLOCK);
}

static int by_message(void) {
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(sockets[0], &message, 0) != 1) return -1;
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static void send_descriptor(void) {
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &passed, sizeof passed);
    if (sendmsg(sockets[1], &message, 0) != 1) perror("sendmsg");
}

/* Closes a file without the C library's names, and gives its number to another object at once. */
static void number_of_another(void) {
    struct { const char *name; int (*make)(void); } all[] = {
        {"pipe", by_pipe}, {"pipe2", by_pipe2}, {"socket", by_socket}, {"socketpair", by_socketpair},
        {"eventfd", by_eventfd}, {"epoll_create", by_epoll_create}, {"epoll_create1", by_epoll_create1},
        {"timerfd_create", by_timerfd}, {"memfd_create", by_memfd}, {"inotify_init", by_inotify},
        {"inotify_init1", by_inotify1}, {"signalfd", by_signalfd}, {"recvmsg", by_message}, {"syscall", by_syscall},
    };
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) perror("socketpair");
    passed = open("/dev/null", O_RDWR);
    for (unsigned which = 0; which < sizeof all / sizeof *all; which++) {
        fflush(stdout);
        /* In a child each time: after one such close vmio no longer trusts the process's descriptors. */
        if (fork() == 0) {
            send_descriptor();
            int fd = made("data");
            get_leased(fd);
            memset(page, 'u', PAGE);
            lseek(fd, 4 * PAGE, SEEK_SET);
            if (pwrite(fd, page, PAGE, 0) != PAGE) perror("pwrite");
            close_unnoticed(fd);
            int made_now = all[which].make();
            memset(page, 1, 8);
            ssize_t written = write(made_now, page, 8);
            int again = open("data", O_RDONLY);
            printf("%s: %d, %zd, page 4 begins with %x\n", all[which].name, made_now == fd, written, first_word(again, 4));
            fflush(stdout);
            _exit(0);
        }
        wait(NULL);
        char byte;
        /* Drops a byte that was sent and not received. */
        recv(sockets[0], &byte, 1, MSG_DONTWAIT);
    }
}

static void owned(void) {
    for (int how = 0; how < 3; how++) {
        int fd = made("data");
        get_leased(fd);
        struct f_owner_ex owner = {F_OWNER_PID, getpid()};
        int status = how == 0   ? fcntl(fd, F_SETOWN, getpid())
                     : how == 1 ? fcntl(fd, F_SETOWN_EX, &owner)
                                : fcntl(fd, F_SETSIG, SIGUSR1);
        get_leased(fd);
        printf("%d: %d; is the owner: %d; signal %d\n", how, status, fcntl(fd, F_GETOWN) == getpid(), fcntl(fd, F_GETSIG));
        /* If this process has a lease of the file, the open asks for it now. */
        fflush(stdout);
        if (fork() == 0) _exit(open("data", O_RDWR) < 0);
        wait(NULL);
        pid_t child = fork();
        if (child == 0) execlp("cat", "cat", "/dev/null", NULL);
        waitpid(child, NULL, 0);
        close(fd);
    }
}

int main(int count, char **arguments) {
    const char *wanted = count == 2 ? arguments[1] : "";
    if (strcmp(wanted, "dup2") == 0) {
        failed("dup2", dup2_of_none);
        failed("dup3", dup3_of_none);
        failed("dup3", dup3_of_no_flags);
    } else if (strcmp(wanted, "close_range") == 0) {
        failed("close_range", range_of_no_flags);
        failed("syscall", range_by_number);
    } else if (strcmp(wanted, "high") == 0) numbered_high();
    else if (strcmp(wanted, "vfork") == 0) child_before_exec();
    else if (strcmp(wanted, "makers") == 0) number_of_another();
    else if (strcmp(wanted, "owner") == 0) owned();
    else return 2;
    return 0;
}
