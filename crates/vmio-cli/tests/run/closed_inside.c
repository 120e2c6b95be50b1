// The C library closes descriptors by itself, and other files get their numbers.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PART = 64 << 10, PARTS = 4 };

static char part[PART];

static void make(const char *name)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	memset(part, name[0], sizeof part);
	for (int at = 0; at < PARTS; at++)
		if (write(fd, part, sizeof part) != sizeof part)
			exit(3);
	fsync(fd);
	close(fd);
}

// Reads a file again and again by a descriptor, so that the file is worth a lease. Stays at its end.
static void use(int fd)
{
	for (int at = 0; at < 16; at++) {
		lseek(fd, at % PARTS * PART, SEEK_SET);
		if (read(fd, part, sizeof part) != sizeof part)
			exit(4);
		usleep(10000);
	}
}

// Reads and writes by a descriptor that was just opened, and prints the results.
static void look(const char *how, FILE *stream)
{
	int fd = fileno(stream);
	part[0] = '-';
	ssize_t count = read(fd, part, sizeof part);
	printf("%s: %zd bytes of %c, and ", how, count, part[0]);
	printf("%zd written, position %ld\n", pwrite(fd, how, strlen(how), 1000), (long)lseek(fd, 0, SEEK_CUR));
	fclose(stream);
}

// The number of a folder's descriptor that the C library has closed by itself.
static int closed_folder(void)
{
	int fd = open(".", O_RDONLY | O_DIRECTORY);
	DIR *folder = fdopendir(fd);
	if (!folder)
		exit(5);
	while (readdir(folder))
		;
	closedir(folder);
	return fd;
}

int main(void)
{
	make("a");
	make("b");
	int number = closed_folder();
	FILE *stream = fopen("a", "r+");
	if (fileno(stream) != number)
		return 6;
	use(number);
	fclose(stream);
	look("fclose", fopen("b", "r+"));

	closed_folder();
	stream = fopen("a", "r+");
	use(fileno(stream));
	look("freopen", freopen("b", "r+", stream));

	// A close that no library can see must not mix up two files either.
	int fd = open("a", O_RDWR);
	use(fd);
	syscall(SYS_close, fd);
	if (open("b", O_RDWR) != fd || read(fd, part, 100) != 100)
		return 7;
	if (fork() == 0)
		_exit(0);
	wait(NULL);
	printf("position %ld\n", (long)lseek(fd, 0, SEEK_CUR));
	return 0;
}
