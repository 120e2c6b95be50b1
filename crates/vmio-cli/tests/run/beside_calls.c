// A file becomes worth a lease while a call is under way that is the kernel's.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SENT = 4 << 20, LONG = (256 << 10) + 904, SHORT = (256 << 10) + 4, WRITES = 9 };

static int file, sockets[2];

static void *send_all(void *nothing)
{
	for (int sent = 0; sent < SENT;) {
		ssize_t count = sendfile(sockets[0], file, NULL, SENT - sent);
		if (count <= 0)
			exit(3);
		sent += count;
	}
	return nothing;
}

// Another thread waits for a socket that nobody reads yet.
static void slow(const char *name)
{
	static char bytes[1 << 16];
	file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
	for (int at = 0; at < SENT; at += sizeof bytes)
		if (pwrite(file, bytes, sizeof bytes, at) != sizeof bytes)
			exit(4);
	close(file);
	file = open(name, O_RDWR);
	pthread_t sender;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0 || pthread_create(&sender, NULL, send_all, NULL) != 0)
		exit(5);
	usleep(20000);
	for (int at = 0; at < 30; at++) {
		if (pread(file, bytes, 100, at) != 100)
			exit(6);
		usleep(5000);
	}
	for (ssize_t count, got = 0; got < SENT; got += count)
		if ((count = read(sockets[1], bytes, sizeof bytes)) <= 0)
			exit(7);
	pthread_join(sender, NULL);
	printf("position %ld\n", (long)lseek(file, 0, SEEK_CUR));
	close(file);
}

static long now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000 + time.tv_nsec;
}

static char whole[LONG];
static atomic_int round_now, writes_begun;

// So many writes that the file is worth a lease with the last.
static void *overwrite(void *rounds)
{
	for (int round = 1; round <= *(int *)rounds; round++) {
		while (atomic_load(&round_now) != round)
			;
		for (int at = 1; at <= WRITES; at++) {
			atomic_store(&writes_begun, at);
			if (pwrite(file, whole, sizeof whole, 0) != sizeof whole)
				exit(8);
		}
		atomic_store(&writes_begun, WRITES + 1);
	}
	return rounds;
}

// A file becomes shorter while it is written to, and just when it would be worth a lease.
static void cut(const char *name, int rounds)
{
	int read_behind = 0, lost = 0;
	pthread_t writer;
	if (pthread_create(&writer, NULL, overwrite, &rounds) != 0)
		exit(9);
	for (int round = 1; round <= rounds; round++) {
		file = open(name, O_RDWR);
		atomic_store(&writes_begun, 0);
		atomic_store(&round_now, round);
		while (atomic_load(&writes_begun) < WRITES)
			;
		for (long end = now() + round % 100 * 300; now() < end;)
			;
		if (ftruncate(file, SHORT) != 0)
			exit(10);
		while (atomic_load(&writes_begun) <= WRITES)
			;
		struct stat about;
		char bytes[16] = "behind the end";
		// Or else the last write came later.
		if (fstat(file, &about) == 0 && about.st_size == SHORT) {
			usleep(300);
			read_behind += pread(file, bytes, sizeof bytes, SHORT + 100) != 0;
			lost += pwrite(file, bytes, sizeof bytes, SHORT + 200) != sizeof bytes || fstat(file, &about) != 0
				|| about.st_size != SHORT + 200 + sizeof bytes;
		}
		close(file);
	}
	pthread_join(writer, NULL);
	printf("%d reads behind the end, %d writes lost\n", read_behind, lost);
}

int main(int count, char **words)
{
	if (count != 3)
		return 2;
	slow(words[1]);
	cut(words[1], atoi(words[2]));
	return 0;
}
