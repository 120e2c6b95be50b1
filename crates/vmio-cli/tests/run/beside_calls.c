// A file becomes worth a lease during a call that the kernel does.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

// The number of writes after which the file is worth a lease.
static void *overwrite(void *rounds)
{
	for (int round = 1; round <= *(int *)rounds; round++) {
		while (atomic_load(&round_now) != round)
			;
		for (int at = 1; at <= WRITES; at++) {
			atomic_store(&writes_begun, at);
			ssize_t count = pwrite(file, whole, sizeof whole, 0);
			if (count != sizeof whole) {
				fprintf(stderr, "write %d of round %d: %zd: %m\n", at, round, count);
				exit(8);
			}
		}
		atomic_store(&writes_begun, WRITES + 1);
	}
	return rounds;
}

// Cuts a file while another thread writes to it, just when the file would be worth a lease.
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
		// If not, the last write came later.
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

enum { PARTS = 64, PART = 1 << 12 };

static atomic_int writers_ready, writers_done;

// Writes the even or the odd parts of the file, each by one durable write.
static void *write_parts(void *first)
{
	static char bytes[2][PART];
	int own = *(int *)first;
	atomic_fetch_add(&writers_ready, 1);
	while (atomic_load(&writers_ready) < 2)
		;
	for (int part = own; part < PARTS; part += 2) {
		memset(bytes[own], part + 1, PART);
		ssize_t count = pwrite(file, bytes[own], PART, (long)part * PART);
		if (count != PART) {
			fprintf(stderr, "write of part %d: %zd: %m\n", part, count);
			exit(11);
		}
	}
	atomic_fetch_add(&writers_done, 1);
	return first;
}

// Two threads are the first to write to a file, while a third makes calls on the file that only the kernel can do.
static void first_writes(const char *name, int rounds)
{
	static int even = 0, odd = 1;
	int wrong = 0, into = open("/dev/null", O_WRONLY);
	for (int round = 1; round <= rounds; round++) {
		file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
		if (posix_fallocate(file, 0, (long)PARTS * PART) != 0)
			exit(12);
		atomic_store(&writers_ready, 0);
		atomic_store(&writers_done, 0);
		pthread_t writers[2];
		if (pthread_create(&writers[0], NULL, write_parts, &even) != 0 ||
			pthread_create(&writers[1], NULL, write_parts, &odd) != 0)
			exit(13);
		while (atomic_load(&writers_done) < 2) {
			off_t start = 0;
			if (sendfile(into, file, &start, PART) != PART)
				exit(14);
			usleep(100);
		}
		pthread_join(writers[0], NULL);
		pthread_join(writers[1], NULL);
		for (int look = 0; look < 2; look++) {
			for (int part = 0; part < PARTS; part++) {
				char byte;
				wrong += pread(file, &byte, 1, (long)part * PART) != 1 || byte != part + 1;
			}
			close(file);
			file = open(name, O_RDONLY);
		}
		close(file);
	}
	printf("%d parts wrong\n", wrong);
}

int main(int count, char **words)
{
	if (count != 4)
		return 2;
	slow(words[1]);
	cut(words[1], atoi(words[2]));
	first_writes(words[1], atoi(words[3]));
	return 0;
}
