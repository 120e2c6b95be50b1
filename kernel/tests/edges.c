// SPDX-License-Identifier: GPL-2.0
/* Ends of files, limits, and refused requests. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../uapi/vmio.h"
#include "support.h"

void beyond_the_end(void)
{
	struct mapped mapped = map(new_pool(64), new_file(4 * PAGE), 8 * PAGE);

	CHECK(!faults(mapped.bytes + 4 * PAGE - 1));
	CHECK(faults(mapped.bytes + 4 * PAGE));
	/* The file becomes longer. */
	CHECK(ftruncate(mapped.backing, 5 * PAGE) == 0);
	CHECK(!faults(mapped.bytes + 4 * PAGE));
	CHECK(faults(mapped.bytes + 5 * PAGE));
	unmap(&mapped);
}

void cut_off(void)
{
	struct mapped mapped = map(new_pool(64), new_file(8 * PAGE), 8 * PAGE);
	struct stat status;

	memset(mapped.bytes, 1, 8 * PAGE);
	CHECK(ftruncate(mapped.backing, 4 * PAGE) == 0);
	/* Stores behind the end are not written, and do not make the file longer. */
	CHECK(fsync(mapped.descriptor) == 0);
	CHECK(fstat(mapped.backing, &status) == 0 && status.st_size == 4 * PAGE);
	CHECK(faults(mapped.bytes + 4 * PAGE));
	CHECK(mapped.bytes[4 * PAGE - 1] == 1);
	CHECK(ftruncate(mapped.backing, 8 * PAGE) == 0);
	CHECK(mapped.bytes[4 * PAGE] == 0 && mapped.bytes[8 * PAGE - 1] == 0);
	unmap(&mapped);
}

void partial_last_page(void)
{
	size_t bytes = 2 * PAGE + 1000;
	struct mapped mapped = map(new_pool(64), new_file(bytes), 4 * PAGE);
	unsigned char tail[1001];
	struct stat status;

	memset(mapped.bytes, 5, bytes);
	CHECK(mapped.bytes[bytes] == 0);
	CHECK(msync(mapped.bytes, 4 * PAGE, MS_SYNC) == 0);
	CHECK(fstat(mapped.backing, &status) == 0 && status.st_size == (off_t)bytes);
	CHECK(fcntl(mapped.backing, F_SETFL, 0) == 0);
	CHECK(pread(mapped.backing, tail, sizeof(tail), 2 * PAGE) == 1000);
	CHECK(tail[0] == 5 && tail[999] == 5);
	unmap(&mapped);
	/* The same after another attach and a new read. */
	CHECK(fcntl(mapped.backing, F_SETFL, O_DIRECT) == 0);
	mapped = map(new_pool(64), mapped.backing, 4 * PAGE);
	CHECK(mapped.bytes[bytes - 1] == 5 && mapped.bytes[bytes] == 0 && mapped.bytes[3 * PAGE - 1] == 0);
	unmap(&mapped);
}

/* An attachment at its limit evicts its own pages, though the pool has more. */
void limited(void)
{
	int pool = new_pool(1024), descriptor = attach(pool, new_file(256 * PAGE), 128);
	volatile unsigned char *bytes;
	long before;

	CHECK(descriptor >= 0);
	bytes = mmap(NULL, 256 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	CHECK(bytes != MAP_FAILED);
	for (int i = 0; i < 128; i++)
		bytes[i * PAGE]++;
	before = major_faults();
	for (int i = 0; i < 128; i++)
		bytes[i * PAGE]++;
	CHECK(major_faults() == before);
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < 256; i++)
			bytes[i * PAGE]++;
	CHECK(major_faults() >= before + 256);
	CHECK(system("grep -q ' resident [0-9]* dirty [0-9]* limit 128 pool 1024 failures 0' "
		     "/sys/kernel/debug/vmio/attachments") == 0);
	for (int i = 0; i < 256; i++)
		CHECK(bytes[i * PAGE] == (i < 128 ? 4 : 2));
	CHECK(munmap((void *)bytes, 256 * PAGE) == 0);
	close(descriptor);
}

void refused(void)
{
	struct vmio_reserve again = { .pages = 64 }, much = { .pages = ~0UL };
	int backing = new_file(4 * PAGE), pool = new_pool(64), bare, descriptor, flags;
	char name[64];

	CHECK(ioctl(pool, VMIO_RESERVE, &again) < 0 && errno == EBUSY);
	bare = open("/dev/vmio", O_RDWR);
	CHECK(ioctl(bare, VMIO_RESERVE, &much) < 0 && errno == ENOMEM);
	much.pages = 1UL << 40;
	CHECK(ioctl(bare, VMIO_RESERVE, &much) < 0 && errno == ENOMEM);
	CHECK(attach(bare, backing, 0) < 0 && errno == EINVAL);
	CHECK(ioctl(bare, VMIO_COUNTS, name) < 0 && errno == EINVAL);
	CHECK(ioctl(pool, VMIO_COUNTS, NULL) < 0 && errno == EFAULT);
	CHECK(attach(pool, -1, 0) < 0 && errno == EBADF);
	CHECK(attach(pool, pool, 0) < 0 && errno == EINVAL);
	/* A file in append mode is refused, since a store does not append. */
	CHECK(ioctl(backing, FS_IOC_GETFLAGS, &flags) == 0);
	flags |= FS_APPEND_FL;
	CHECK(ioctl(backing, FS_IOC_SETFLAGS, &flags) == 0);
	CHECK(attach(pool, backing, 0) < 0 && errno == EACCES);
	flags &= ~FS_APPEND_FL;
	CHECK(ioctl(backing, FS_IOC_SETFLAGS, &flags) == 0);
	/* Without O_DIRECT. */
	CHECK(fcntl(backing, F_SETFL, 0) == 0);
	CHECK(attach(pool, backing, 0) < 0 && errno == EINVAL);
	/* A descriptor for reading gives a mapping for reading. */
	snprintf(name, sizeof(name), "/proc/self/fd/%d", backing);
	descriptor = attach(pool, open(name, O_RDONLY | O_DIRECT), 0);
	CHECK(descriptor >= 0);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) == MAP_FAILED && errno == EACCES);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, descriptor, 0) == MAP_FAILED && errno == EINVAL);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, descriptor, 0) == MAP_FAILED && errno == EPERM);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, descriptor, 0) != MAP_FAILED);
	CHECK(attach(pool, open(name, O_WRONLY | O_DIRECT), 0) < 0 && errno == EBADF);
	CHECK(attach(pool, descriptor, 0) < 0 && errno == EINVAL);
}

/* While all pages are dirty and threads wait for some, a kill ends the process and frees everything that it had. */
void killed(void)
{
	for (int round = 0; round < 5; round++) {
		pid_t child = fork();
		int status;

		if (child == 0) {
			CHECK(setpgid(0, 0) == 0);
			struct mapped mapped = map(new_pool(64), new_file(1024 * PAGE), 1024 * PAGE);

			fork();
			for (;;)
				for (int i = 0; i < 1024; i++)
					mapped.bytes[i * PAGE]++;
		}
		usleep(200000);
		CHECK(kill(-child, SIGKILL) == 0);
		CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	}
}
