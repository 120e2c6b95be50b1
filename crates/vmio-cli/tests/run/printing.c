// The C library writes to a descriptor by itself, and the program becomes another one: both continue at the position.
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void lines(int fd, int count)
{
	char line[64];
	for (int at = 0; at < count; at++) {
		memset(line, 'a' + at % 26, sizeof line);
		line[63] = '\n';
		if (pwrite(fd, line, sizeof line, 0) != sizeof line || write(fd, line, sizeof line) != sizeof line)
			exit(1);
		if (at % 64 == 0)
			usleep(300);
	}
}

int main(int count, char **words)
{
	if (count != 2)
		return 2;
	int fd = open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
	lines(fd, 300);
	dprintf(fd, "%s %d %.3f\n", "printed", 7, 1.5);
	lines(fd, 300);
	FILE *stream = fdopen(dup(fd), "w");
	fprintf(stream, "by a stream\n");
	fclose(stream);
	lines(fd, 300);
	char number[16];
	snprintf(number, sizeof number, "%d", fd);
	char *words_of_child[] = { "sh", "-c", "echo by a child >&$0", number, NULL };
	pid_t child;
	if (posix_spawnp(&child, "sh", NULL, NULL, words_of_child, environ) != 0 || waitpid(child, NULL, 0) != child)
		return 3;
	close(fd);
	fd = open(words[1], O_RDWR);
	lseek(fd, -10, SEEK_END);
	lines(fd, 300);
	snprintf(number, sizeof number, "%d", fd);
	execl("/bin/sh", "sh", "-c", "echo by the next program >&$0", number, NULL);
	return 4;
}
