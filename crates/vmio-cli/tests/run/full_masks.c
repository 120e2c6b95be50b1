// Signal handlers that block all signals write to a file.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 256, WRITTEN = 64 };

static int fd;
static char page[PAGE];

static void write_pages(int signal)
{
	static char written[PAGE];
	memset(written, signal, sizeof written);
	for (int at = 0; at < WRITTEN; at++)
		if (pwrite(fd, written, sizeof written, at * PAGE) != sizeof written)
			_exit(3);
}

// Writes all pages back, and brings them into memory.
static void make_clean(void)
{
	fsync(fd);
	for (int at = 0; at < PAGES; at++)
		if (pread(fd, page, sizeof page, at * PAGE) != sizeof page)
			exit(4);
}

static void handled(const char *how, int signal)
{
	if (pread(fd, page, sizeof page, (WRITTEN - 1) * PAGE) != sizeof page)
		exit(5);
	printf("%s: %d\n", how, page[0] == signal);
	fflush(stdout);
	memset(page, 1, sizeof page);
	make_clean();
}

int main(void)
{
	fd = open("data", O_RDWR | O_CREAT | O_TRUNC, 0644);
	for (int at = 0; at < PAGES; at++)
		if (write(fd, page, sizeof page) != sizeof page)
			return 6;
	for (int at = 0; at < 40; at++) {
		make_clean();
		usleep(5000);
	}
	struct sigaction action = { .sa_handler = write_pages }, before;
	sigfillset(&action.sa_mask);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	handled("raise", SIGUSR1);

	// The program reads back the masks that it set.
	sigaction(SIGUSR1, NULL, &before);
	printf("asked for: %d\n", sigismember(&before.sa_mask, SIGBUS));
	sigemptyset(&action.sa_mask);
	sigaction(SIGUSR2, &action, &before);
	printf("not asked for: %d\n", sigismember(&before.sa_mask, SIGBUS));
	sigaction(SIGUSR1, &action, &before);
	printf("asked for before: %d\n", sigismember(&before.sa_mask, SIGBUS));
	sigaction(SIGUSR1, NULL, &before);
	printf("not asked for any more: %d\n", sigismember(&before.sa_mask, SIGBUS));

	// The same with the masks of calls that wait.
	sigset_t blocked, waiting;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	sigfillset(&waiting);
	sigdelset(&waiting, SIGUSR2);
	struct timespec second = { .tv_sec = 1 };
	raise(SIGUSR2);
	sigsuspend(&waiting);
	handled("sigsuspend", SIGUSR2);
	raise(SIGUSR2);
	ppoll(NULL, 0, &second, &waiting);
	handled("ppoll", SIGUSR2);
	raise(SIGUSR2);
	pselect(0, NULL, NULL, NULL, &second, &waiting);
	handled("pselect", SIGUSR2);
	struct epoll_event event;
	int epoll = epoll_create1(0);
	raise(SIGUSR2);
	epoll_pwait(epoll, &event, 1, 1000, &waiting);
	handled("epoll_pwait", SIGUSR2);
	return 0;
}
