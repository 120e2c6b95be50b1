/* Installs handlers of SIGBUS in each possible way, after it has mapped a file. Usage: handlers WAY. Prints the former handler, the mask
   in the handler, and the effect of the next SIGBUS: the same as without vmio. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };
typedef void (*handler_t)(int);
extern handler_t ssignal(int, handler_t), sysv_signal(int, handler_t);

static int data;
static sigjmp_buf before;
static int lengthens;

static void print_blocked(const char *where) {
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    printf("%s, blocked:", where);
    for (int signal = 1; signal < 32; signal++)
        if (sigismember(&blocked, signal)) printf(" %d", signal);
    printf("\n");
}

static void first(int signal) {
    (void)signal;
}

static void handler(int signal) {
    printf("SIGBUS is %d\n", signal == SIGBUS);
    print_blocked("in the handler");
    if (lengthens) {
        lengthens = 0;
        if (ftruncate(data, 2 * PAGE) != 0) exit(6);
        return;
    }
    siglongjmp(before, 1);
}

static void informed(int signal, siginfo_t *about, void *context) {
    printf("code %d, with a context %d\n", about->si_code, context != NULL);
    handler(signal);
}

static const char *name_of(handler_t which) {
    return which == SIG_DFL ? "the default" : which == SIG_IGN ? "ignored" : which == SIG_ERR ? "an error"
        : which == first ? "first" : which == handler ? "handler" : which == SIG_HOLD ? "held" : "another";
}

static handler_t act(handler_t which, int flags) {
    struct sigaction action = {.sa_handler = which, .sa_flags = flags}, old;
    sigaddset(&action.sa_mask, SIGUSR1);
    if (sigaction(SIGBUS, &action, &old) != 0) return SIG_ERR;
    return old.sa_handler;
}

#ifdef __x86_64__
__asm__("restorer: mov $15, %eax\n syscall");
extern void restorer(void);
#define RESTORER (unsigned long)restorer
#define HAS_RESTORER 0x04000000
#else
#define RESTORER 0
#define HAS_RESTORER 0
#endif

static handler_t by_number(handler_t which) {
    struct { handler_t handler; unsigned long flags, restorer, mask; } action = {which, HAS_RESTORER, RESTORER, 1UL << (SIGUSR2 - 1)}, old;
    return syscall(SYS_rt_sigaction, SIGBUS, &action, &old, 8) == 0 ? old.handler : SIG_ERR;
}

static handler_t install(const char *way, handler_t which) {
    if (strcmp(way, "sigaction") == 0) return act(which, 0);
    if (strcmp(way, "nodefer") == 0) return act(which, SA_NODEFER);
    if (strcmp(way, "once") == 0) return act(which, SA_RESETHAND);
    if (strcmp(way, "informed") == 0) return act(which == handler ? (handler_t)(void *)informed : which, SA_SIGINFO);
    if (strcmp(way, "signal") == 0) return signal(SIGBUS, which);
    if (strcmp(way, "bsd_signal") == 0) return ((handler_t(*)(int, handler_t))dlsym(RTLD_DEFAULT, "bsd_signal"))(SIGBUS, which);
    if (strcmp(way, "ssignal") == 0) return ssignal(SIGBUS, which);
    if (strcmp(way, "sysv_signal") == 0) return sysv_signal(SIGBUS, which);
    if (strcmp(way, "__sysv_signal") == 0) return __sysv_signal(SIGBUS, which);
    if (strcmp(way, "sigset") == 0) return sigset(SIGBUS, which);
    if (strcmp(way, "syscall") == 0) return by_number(which);
    if (strcmp(way, "siginterrupt") == 0) {
        handler_t old = signal(SIGBUS, which);
        return siginterrupt(SIGBUS, 1) == 0 ? old : SIG_ERR;
    }
    exit(5);
}

int main(int count, char **arguments) {
    if (count != 2) return 3;
    const char *way = arguments[1];
    setvbuf(stdout, NULL, _IONBF, 0);
    data = open("data", O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (data < 0 || ftruncate(data, 2 * PAGE) != 0) return 4;
    volatile char *map = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, data, 0);
    map[0] = 1;
    if (truncate("data", PAGE) != 0) return 4;
    if (strcmp(way, "sigignore") == 0) {
        /* The kernel does not let a program ignore a fault. */
        printf("%d\n", sigignore(SIGBUS));
        raise(SIGBUS);
    } else {
        printf("before: %s\n", name_of(install(way, first)));
        printf("before: %s\n", name_of(install(way, handler)));
        if (strcmp(way, "sigset") == 0) {
            printf("held: %s\n", name_of(sigset(SIGBUS, SIG_HOLD)));
            print_blocked("held");
            printf("no more held: %s\n", name_of(sigset(SIGBUS, handler)));
        }
        lengthens = strcmp(way, "once") != 0 && strcmp(way, "sysv_signal") != 0 && strcmp(way, "__sysv_signal") != 0;
        if (lengthens) {
            map[PAGE] = 1;
            print_blocked("after it");
            if (truncate("data", PAGE) != 0) return 4;
        }
        if (sigsetjmp(before, 1) == 0) map[PAGE] = 2;
        print_blocked("after a jump");
        struct sigaction now;
        sigaction(SIGBUS, NULL, &now);
        printf("now: %s\n", name_of(now.sa_handler));
        for (int call = 0; call < 300000; call++) sigaction(SIGBUS, &now, NULL);
    }
    /* The calls take the program's own memory, and not more with each call. */
    FILE *about = fopen("/proc/self/statm", "r");
    long pages, resident;
    if (fscanf(about, "%ld %ld", &pages, &resident) != 2) return 7;
    printf("it is small: %d\n", resident < 8192);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGBUS, SIG_DFL);
        map[PAGE] = 3;
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    printf("a child dies of SIGBUS: %d\n", WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    return 0;
}
