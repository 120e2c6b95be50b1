// Threads read and overwrite blocks of a file, each by calls of its own, while another process opens, cuts and lengthens the file: all
// words of a block have the same number, or the block is behind the end.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, BLOCK_BYTES = 4096, BLOCKS = 1024, ROUNDS = 6 };

extern char **environ;
static int fd;
static atomic_int is_over, own_faults;
static const char *name;

static void fail(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	fflush(stdout);
	_exit(1);
}

static void *work(void *argument)
{
	unsigned at = (unsigned)(uintptr_t)argument;
	uint64_t block[BLOCK_BYTES / 8];
	sigset_t all;
	// SIGBUS, too: a thread that blocks it must not be killed when others cut the file.
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	while (!is_over) {
		at = at * 1103515245 + 12345;
		// Each thread has blocks of its own, since a call is not atomic beside others.
		off_t offset = ((at >> 8) % (BLOCKS / THREADS) * THREADS + (uintptr_t)argument) * BLOCK_BYTES;
		if (at >> 30 == 0) {
			for (int word = 0; word < BLOCK_BYTES / 8; word++)
				block[word] = at;
			if (pwrite(fd, block, BLOCK_BYTES, offset) != BLOCK_BYTES)
				fail("pwrite");
			continue;
		}
		ssize_t bytes = pread(fd, block, BLOCK_BYTES, offset);
		if (bytes < 0)
			fail("pread");
		for (int word = 1; word < bytes / 8; word++)
			if (block[word] != block[0])
				fail("a block of two numbers");
	}
	return NULL;
}

static void on_own_fault(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	own_faults++;
	// With memory there, the load that faulted goes on.
	void *page = (void *)((uintptr_t)info->si_addr / 4096 * 4096);
	if (mmap(page, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		_exit(9);
}

// The program's own handler of SIGBUS gets the program's own faults.
static void fault_of_its_own(void)
{
	struct sigaction action = { .sa_sigaction = on_own_fault, .sa_flags = SA_SIGINFO }, now;
	sigaction(SIGBUS, &action, NULL);
	sigaction(SIGBUS, NULL, &now);
	if (now.sa_sigaction != on_own_fault)
		fail("another handler");
	volatile char *bytes = mmap(NULL, 4096, PROT_READ, MAP_SHARED, memfd_create("empty", MFD_CLOEXEC), 0);
	if (bytes[5] != 0 || own_faults != 1)
		fail("the handler of the program's own faults");
}

static void run(char **words)
{
	pid_t process;
	int status = -1;
	if (posix_spawnp(&process, words[0], NULL, NULL, words, environ) == 0)
		waitpid(process, &status, 0);
	if (status != 0)
		fail(words[0]);
}

int main(int count, char **words)
{
	if (count != 3)
		return 2;
	name = words[1];
	char *plain = words[2];
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || ftruncate(fd, BLOCKS * BLOCK_BYTES) != 0)
		fail("open");
	pthread_t threads[THREADS];
	for (uintptr_t at = 0; at < THREADS; at++)
		pthread_create(&threads[at], NULL, work, (void *)at);
	for (int round = 0; round < ROUNDS; round++) {
		usleep(40000);
		// With "yes", by a process without vmio, of which only the kernel tells us.
		char *cut[] = { "env", "-u", "LD_PRELOAD", "truncate", "-s", round % 2 ? "1M" : "4M", (char *)name, NULL };
		run(plain[0] == 'y' ? cut : cut + 3);
		if (round == 2) {
			// The kernel now serves the description for good; another one begins anew.
			int again = open(name, O_RDWR | O_CLOEXEC);
			dup3(again, fd, O_CLOEXEC);
			close(again);
		}
	}
	is_over = 1;
	for (int at = 0; at < THREADS; at++)
		pthread_join(threads[at], NULL);
	fault_of_its_own();
	printf("done\n");
	return 0;
}
