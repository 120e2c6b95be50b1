// Makes random calls on some files, by several descriptors, duplicates, children and another process. Prints each call's result and the
// bytes that it reads: with the same seed the output must be the same with vmio as without.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DESCRIPTORS = 5, FILE_BYTES = 6 << 20, CALL_BYTES = 20000 };

extern char **environ;
static uint64_t state;
static char buffer[CALL_BYTES], names[DESCRIPTORS][4096];
static int fds[DESCRIPTORS];

static uint32_t random_below(uint32_t end)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % end;
}

static uint32_t checksum(const char *bytes, ssize_t count)
{
	uint32_t sum = 1;
	for (ssize_t at = 0; at < count; at++)
		sum = sum * 31 + (unsigned char)bytes[at];
	return sum;
}

static void say(const char *what, int which, ssize_t result)
{
	printf("%s %d: %zd %s\n", what, which, result, result < 0 ? strerrorname_np(errno) : "");
}

static void fill(size_t bytes)
{
	uint32_t start = random_below(251);
	for (size_t at = 0; at < bytes; at++)
		buffer[at] = (char)(start + at * 7 + at / 256);
}

// One read or write: many of them in a row make the file worth a lease.
static void transfer(int which, int kind, int is_said)
{
	int fd = fds[which];
	off_t offset = random_below(FILE_BYTES);
	size_t bytes = random_below(4) ? random_below(600) : random_below(CALL_BYTES);
	size_t half = bytes / 2;
	struct iovec parts[] = { { buffer, half }, { buffer + half, bytes - half } };
	ssize_t done = 0;
	if (kind >= 4)
		fill(bytes);
	switch (kind) {
	case 0: done = read(fd, buffer, bytes); break;
	case 1: done = pread(fd, buffer, bytes, offset); break;
	case 2: done = readv(fd, parts, 2); break;
	case 3: done = preadv(fd, parts, 2, offset); break;
	case 4: done = write(fd, buffer, bytes); break;
	case 5: done = pwrite(fd, buffer, bytes, offset); break;
	case 6: done = writev(fd, parts, 2); break;
	case 7: done = pwritev(fd, parts, 2, offset); break;
	}
	if (!is_said && done >= 0)
		return;
	say(kind < 4 ? "read" : "write", which, done);
	if (kind < 4 && done > 0)
		printf("  %u\n", checksum(buffer, done));
}

static void open_one(int which)
{
	static const int flags[] = { O_RDWR, O_RDWR, O_RDWR, O_RDWR, O_RDONLY, O_RDONLY, O_WRONLY, O_RDWR | O_APPEND, O_RDWR | O_TRUNC };
	// A file that two descriptions may write to cannot be leased.
	const char *name = names[random_below(6) ? which : (int)random_below(DESCRIPTORS)];
	if (fds[which] >= 0)
		say("close", which, close(fds[which]));
	int flag = flags[random_below(sizeof flags / sizeof *flags)];
	fds[which] = open(name, flag | O_CREAT | O_CLOEXEC, 0644);
	say("open", which, fds[which] < 0 ? -1 : flag);
}

// Lets another process change a file; the change is complete when this returns.
static void by_another_process(void)
{
	char length[32], *name = names[random_below(DESCRIPTORS)];
	snprintf(length, sizeof length, "%u", random_below(FILE_BYTES));
	char *cut[] = { "truncate", "-s", length, name, NULL };
	char *add[] = { "sh", "-c", "echo appended >> \"$0\"", name, NULL };
	char **words = random_below(2) ? cut : add;
	pid_t process;
	int status = posix_spawnp(&process, words[0], NULL, NULL, words, environ);
	if (status == 0)
		waitpid(process, &status, 0);
	say(words[0], 0, status);
}

// A child shares the positions of its parent.
static void by_a_child(int which)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		for (int at = 0; at < 20; at++)
			transfer(which, random_below(8), 1);
		fflush(stdout);
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	say("child", which, status);
	random_below(2);
}

static void duplicate(int which)
{
	int other = random_below(DESCRIPTORS);
	if (fds[which] < 0 || other == which)
		return;
	if (fds[other] >= 0 && random_below(2)) {
		say("dup2", which, dup2(fds[which], fds[other]) == fds[other]);
		return;
	}
	if (fds[other] >= 0)
		close(fds[other]);
	fds[other] = random_below(2) ? dup(fds[which]) : fcntl(fds[which], F_DUPFD_CLOEXEC, 20);
	say("dup", which, fds[other] >= 0);
}

static void look(int which)
{
	struct stat found;
	say("fstat", which, fstat(fds[which], &found));
	if (fds[which] >= 0)
		printf("  %lld\n", (long long)found.st_size);
}

static void store_through_a_mapping(int which)
{
	char *bytes = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fds[which], 0);
	struct stat found;
	if (bytes == MAP_FAILED) {
		say("mmap", which, -1);
		return;
	}
	if (fstat(fds[which], &found) == 0 && found.st_size >= 8192) {
		memset(bytes + random_below(4096), 'm', 4096);
		printf("mapped %u\n", checksum(bytes, 8192));
	}
	munmap(bytes, 8192);
}

int main(int count, char **words)
{
	if (count != 4)
		return 2;
	state = strtoull(words[2], NULL, 10);
	for (int at = 0; at < DESCRIPTORS; at++)
		snprintf(names[at], sizeof names[at], "%s/file%d", words[1], at);
	for (int at = 0; at < DESCRIPTORS; at++)
		fds[at] = -1;
	for (long step = 0; step < atol(words[3]); step++) {
		int which = random_below(DESCRIPTORS);
		switch (random_below(100)) {
		case 0 ... 4: open_one(which); break;
		case 5: duplicate(which); break;
		case 6: by_another_process(); break;
		case 7: if (random_below(2)) by_a_child(which); break;
		case 8: say("ftruncate", which, ftruncate(fds[which], random_below(FILE_BYTES))); break;
		case 9: say("truncate", which, truncate(names[random_below(DESCRIPTORS)], random_below(FILE_BYTES))); break;
		case 10 ... 12: say("lseek", which, lseek(fds[which], random_below(FILE_BYTES), SEEK_SET)); break;
		case 13: say("lseek", which, lseek(fds[which], (off_t)random_below(9000) - 4500, SEEK_CUR)); break;
		case 14: say("lseek", which, lseek(fds[which], (off_t)random_below(9000) - 4500, SEEK_END)); break;
		// The places of holes depend on the pages in memory. The test checks only that the program has the position afterwards.
		case 15: {
			off_t to = lseek(fds[which], random_below(FILE_BYTES), SEEK_DATA);
			say("lseek", which, lseek(fds[which], 0, SEEK_CUR) == to || to < 0);
			lseek(fds[which], 100, SEEK_SET);
			break;
		}
		case 16: look(which); break;
		case 17: say("fsync", which, fsync(fds[which])); break;
		case 18: store_through_a_mapping(which); break;
		case 19: say("append", which, fcntl(fds[which], F_SETFL, random_below(2) ? O_APPEND : 0)); break;
		case 20: {
			off_t at = random_below(FILE_BYTES), to = random_below(FILE_BYTES);
			int other = random_below(DESCRIPTORS), by_position = random_below(2);
			say("copy", which, copy_file_range(fds[which], by_position ? NULL : &at, fds[other], by_position ? NULL : &to, 5000, 0));
			break;
		}
		default: {
			int kind = random_below(8);
			for (int at = 0; at < 100; at++)
				transfer(which, kind, at % 10 == 0);
			// Gives the lease manager time to run.
			if (random_below(4) == 0)
				usleep(300);
		}
		}
	}
	for (int at = 0; at < DESCRIPTORS; at++)
		say("position", at, lseek(fds[at], 0, SEEK_CUR));
	return 0;
}
