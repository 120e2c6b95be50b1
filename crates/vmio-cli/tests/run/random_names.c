// Makes random calls on names, attributes and descriptors in a folder. Prints the result of each, and the contents of the folder in the
// end: with the same seed the output must be the same with vmio as without. (random_calls.c has long runs of reads and writes.)
#define _GNU_SOURCE
#include "random_names.h"
#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>

int slots[SLOTS];
static uint64_t state;
static long step, steps;
static int is_anew;
static char buffer[CALL_BYTES];
// A mapping that outlives other calls, and a descriptor of its file.
static struct {
	char *bytes;
	int fd, may_store;
} kept = { NULL, -1, 0 };

uint32_t random_below(uint32_t end)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % end;
}

void told(ssize_t result, const char *format, ...)
{
	int error = errno;
	va_list words;
	va_start(words, format);
	printf("%ld ", step);
	vprintf(format, words);
	va_end(words);
	printf(": %zd %s\n", result, result < 0 ? strerrorname_np(error) : "");
}

static uint32_t checksum(const char *bytes, ssize_t count)
{
	uint32_t sum = 1;
	for (ssize_t at = 0; at < count; at++)
		sum = sum * 31 + (unsigned char)bytes[at];
	return sum;
}

static void fill(size_t bytes)
{
	uint32_t start = random_below(251);
	for (size_t at = 0; at < bytes; at++)
		buffer[at] = (char)(start + at * 7 + at / 256);
}

// An offset that a file may have, or one that no file may have.
static off_t random_offset(void)
{
	static const off_t wrong[] = { -1, -4096, (off_t)1 << 60, INT64_MAX };
	return random_below(30) ? random_below(FILE_BYTES) : wrong[random_below(4)];
}

int random_slot(void)
{
	int which = random_below(SLOTS);
	// Mostly an open one.
	return slots[which] >= 0 || random_below(4) == 0 ? which : (int)random_below(SLOTS);
}

static void put(int which, int fd)
{
	if (fd < 0)
		return;
	if (slots[which] >= 0)
		told(close(slots[which]), "close %d", which);
	slots[which] = fd;
}

static void open_one(void)
{
	static const int ways[] = { O_RDWR, O_RDWR, O_RDWR, O_RDONLY, O_WRONLY };
	static const int more[] = { O_CREAT, O_CREAT, O_TRUNC, O_EXCL, O_APPEND, O_DIRECTORY, O_NOFOLLOW, O_DSYNC, O_PATH, O_NONBLOCK };
	int which = random_slot(), flags = ways[random_below(5)], folder = random_folder(), fd;
	for (int count = random_below(3); count >= 0; count--)
		flags |= more[random_below(sizeof more / sizeof *more)];
	char path[PATH_BYTES];
	random_path(path);
	struct stat found;
	// An open of one end of a pipe waits for the other end.
	int kind = random_below(4);
	int is_pipe = fstatat(kind == 2 ? folder : AT_FDCWD, path, &found, 0) == 0 && S_ISFIFO(found.st_mode);
	flags |= is_pipe ? O_NONBLOCK : 0;
	mode_t mode = random_mode();
	switch (kind) {
	case 0: fd = open(path, flags, mode); break;
	case 1: fd = open64(path, flags, mode); break;
	case 2: fd = openat(folder, path, flags, mode); break;
	default: fd = is_pipe ? -2 : creat(path, mode);
	}
	told(fd < 0 ? -1 : 0, "open %.40s %#o", path, flags);
	put(which, fd);
}

static void open_without_a_name(void)
{
	char path[PATH_BYTES], link[64];
	random_path(path);
	int fd = open("d", O_TMPFILE | O_RDWR, 0600);
	told(fd < 0 ? -1 : 0, "temporary");
	if (fd < 0)
		return;
	told(write(fd, "temporary", 9), "write");
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	told(linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW), "linkat temporary %.40s", path);
	put(random_slot(), fd);
	char made[] = "e/XXXXXX", folder[] = "d/XXXXXX";
	fd = mkstemp(made);
	told(fd < 0 ? -1 : 0, "mkstemp");
	if (fd >= 0) {
		told(unlink(made), "unlink it");
		put(random_slot(), fd);
	}
	if (mkdtemp(folder) != NULL)
		told(rmdir(folder), "rmdir it");
}

static void close_or_duplicate(void)
{
	int which = random_slot(), other = random_slot();
	switch (random_below(4)) {
	case 0:
		told(close(slots[which]), "close %d", which);
		slots[which] = -1;
		break;
	case 1: put(other, dup(slots[which])); break;
	case 2: put(other, fcntl(slots[which], F_DUPFD_CLOEXEC, 30)); break;
	default: told(dup3(slots[which], slots[other], 0) < 0 ? -1 : 0, "dup3 %d %d", which, other);
	}
}

// Many small calls make the file worth a lease.
static void use(void)
{
	int fd = slots[random_slot()];
	uint32_t sum = 0;
	ssize_t done = 0;
	for (int at = 0; at < 40; at++) {
		off_t offset = random_below(20000);
		int writes = random_below(2);
		if (writes)
			fill(100);
		done = writes ? pwrite(fd, buffer, 100, offset) : pread(fd, buffer, 100, offset);
		sum = sum * 31 + (uint32_t)done + (writes || done < 0 ? 0 : checksum(buffer, done));
	}
	told(done, "use %u", sum);
	if (random_below(3) == 0)
		usleep(300);
}

static void transfer(void)
{
	int which = random_slot(), fd = slots[which], flags = random_below(4) ? 0 : RWF_APPEND | RWF_DSYNC;
	off_t offset = random_offset();
	size_t bytes = random_below(4) ? random_below(600) : random_below(CALL_BYTES), room = sizeof buffer;
	struct iovec parts[] = { { buffer, bytes / 3 }, { NULL, 0 }, { buffer + bytes / 3, bytes - bytes / 3 } };
	int kind = random_below(14), reads = kind < 7, count = random_below(40) ? 3 : (int)random_below(3) * 1026 - 1;
	ssize_t done = -1;
	if (!reads)
		fill(bytes);
	switch (kind) {
	case 0: done = read(fd, buffer, bytes); break;
	case 1: done = pread(fd, buffer, bytes, offset); break;
	case 2: done = __pread64_chk(fd, buffer, bytes, offset, room); break;
	case 3: done = __read_chk(fd, buffer, bytes, room); break;
	case 4: done = readv(fd, parts, count); break;
	case 5: done = preadv64(fd, parts, count, offset); break;
	case 6: done = preadv2(fd, parts, count, random_below(2) ? -1 : offset, 0); break;
	case 7: done = write(fd, buffer, bytes); break;
	case 8: done = pwrite(fd, buffer, bytes, offset); break;
	case 9: done = pwrite64(fd, buffer, bytes, offset); break;
	case 10: done = writev(fd, parts, count); break;
	case 11: done = pwritev64(fd, parts, count, offset); break;
	case 12: done = pwritev2(fd, parts, count, random_below(2) ? -1 : offset, flags); break;
	case 13: done = dprintf(fd, "%s of %zu bytes", "printed", bytes); break;
	}
	told(done, "transfer %d by %d at %lld", which, kind, (long long)offset);
	if (reads && done > 0)
		printf("  %u\n", checksum(buffer, done));
}

static void move(void)
{
	int which = random_slot(), fd = slots[which], whence = random_below(6);
	off_t offset = whence == SEEK_SET ? random_offset() : (off_t)random_below(9000) - 4500;
	if (whence != SEEK_DATA && whence != SEEK_HOLE) {
		told(lseek(fd, offset, whence), "lseek %d %lld %d", which, (long long)offset, whence);
		return;
	}
	// The file system may choose where it reports holes, but its answers must be consistent.
	struct stat found;
	off_t to = lseek(fd, offset, whence);
	int error = errno, is_past = fstat(fd, &found) == 0 && offset >= found.st_size;
	errno = error;
	told(to >= 0 ? 0 : whence == SEEK_DATA && !is_past && error == ENXIO ? 0 : -1, "lseek %d %lld %d", which, (long long)offset, whence);
	if (to >= 0)
		told(lseek(fd, 0, SEEK_CUR) - to, "moved");
	told(lseek(fd, 100, SEEK_SET), "lseek %d 100", which);
}

static void change_length(void)
{
	static const int modes[] = {
		0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE,
		FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE, FALLOC_FL_PUNCH_HOLE,
	};
	int which = random_slot(), mode = modes[random_below(sizeof modes / sizeof *modes)];
	off_t offset = random_offset(), len = random_below(60000);
	char path[PATH_BYTES];
	random_path(path);
	// Only whole blocks can be removed or inserted.
	if (random_below(2))
		offset &= ~(off_t)4095, len &= ~(off_t)4095;
	switch (random_below(5)) {
	case 0: told(ftruncate(slots[which], offset), "ftruncate %d %lld", which, (long long)offset); break;
	case 1: told(truncate(path, offset), "truncate %.40s %lld", path, (long long)offset); break;
	case 2: told(-posix_fallocate(slots[which], offset, len), "posix_fallocate %d %lld %lld", which, (long long)offset, (long long)len); break;
	default: told(fallocate(slots[which], mode, offset, len), "fallocate %d %d %lld %lld", which, mode, (long long)offset, (long long)len);
	}
}

static void copy(void)
{
	int from = random_slot(), to = random_slot(), pipes[2];
	off_t at = random_below(FILE_BYTES), target = random_below(FILE_BYTES), *at_or_not = random_below(2) ? &at : NULL;
	off_t *target_or_not = random_below(2) ? &target : NULL;
	switch (random_below(3)) {
	case 0: told(copy_file_range(slots[from], at_or_not, slots[to], target_or_not, 5000, 0), "copy_file_range %d %d", from, to); break;
	case 1: told(sendfile(slots[to], slots[from], at_or_not, 5000), "sendfile %d %d", from, to); break;
	default:
		if (pipe2(pipes, O_NONBLOCK) != 0)
			return;
		told(splice(slots[from], at_or_not, pipes[1], NULL, 3000, 0), "splice %d", from);
		told(splice(pipes[0], NULL, slots[to], target_or_not, 3000, 0), "splice to %d", to);
		close(pipes[0]);
		close(pipes[1]);
	}
}

static void map(void)
{
	int which = random_slot(), kind = random_below(3), fd = slots[which];
	struct stat found;
	if (kept.bytes != NULL) {
		if (fstat(kept.fd, &found) == 0 && found.st_size >= MAPPED_BYTES) {
			if (kept.may_store)
				memset(kept.bytes + random_below(MAPPED_BYTES - 500), 'm', 500);
			told(checksum(kept.bytes, MAPPED_BYTES), "mapped");
			told(msync(kept.bytes, MAPPED_BYTES, random_below(2) ? MS_SYNC : MS_ASYNC), "msync");
		}
		if (random_below(2)) {
			told(munmap(kept.bytes, MAPPED_BYTES), "munmap");
			kept.bytes = NULL;
			close(kept.fd);
		}
		return;
	}
	int protection = kind == 0 ? PROT_READ : PROT_READ | PROT_WRITE, how = kind == 2 ? MAP_PRIVATE : MAP_SHARED;
	char *bytes = mmap(NULL, MAPPED_BYTES, protection, how, fd, 0);
	told(bytes == MAP_FAILED ? -1 : 0, "mmap %d %d", which, kind);
	if (bytes == MAP_FAILED)
		return;
	if (how == MAP_PRIVATE) {
		if (fstat(fd, &found) == 0 && found.st_size >= MAPPED_BYTES) {
			bytes[random_below(MAPPED_BYTES)] = 'p';
			told(checksum(bytes, MAPPED_BYTES), "mapped alone");
		}
		told(munmap(bytes, MAPPED_BYTES), "munmap");
		return;
	}
	kept.bytes = bytes, kept.fd = dup(fd), kept.may_store = kind == 1;
}

static void flags_and_locks(void)
{
	int which = random_slot(), fd = slots[which], status;
	struct flock lock = { .l_type = (short)random_below(3), .l_whence = SEEK_SET, .l_start = random_below(100), .l_len = random_below(100) };
	switch (random_below(9)) {
	case 0: {
		// After exec there may be an O_DSYNC that the program did not ask for, as documented.
		int flags = fcntl(fd, F_GETFL);
		told(flags < 0 || !is_anew ? flags : flags & ~O_DSYNC, "F_GETFL %d", which);
		break;
	}
	case 1: told(fcntl(fd, F_SETFL, O_NONBLOCK | (random_below(2) ? O_APPEND : 0)), "F_SETFL %d", which); break;
	case 2: told(fcntl(fd, F_SETFD, random_below(2)), "F_SETFD %d", which); break;
	case 3: told(fcntl(fd, F_GETFD), "F_GETFD %d", which); break;
	case 4: told(random_below(2) ? fsync(fd) : fdatasync(fd), "sync %d", which); break;
	case 5: told(flock(fd, (random_below(2) ? LOCK_SH : LOCK_UN) | LOCK_NB), "flock %d", which); break;
	case 6: told(fcntl(fd, F_SETLK, &lock), "F_SETLK %d %d %d", which, lock.l_type, (int)lock.l_start); break;
	default:
		// A child's view of the lock.
		fflush(stdout);
		if (fork() == 0) {
			lock.l_type = F_WRLCK, lock.l_start = 0, lock.l_len = 0;
			told(fcntl(fd, F_GETLK, &lock), "F_GETLK %d", which);
			printf("  %d %lld %lld\n", lock.l_type, (long long)lock.l_start, (long long)lock.l_len);
			fflush(stdout);
			_exit(0);
		}
		wait(&status);
		told(status, "child");
	}
}

// A child goes on for a while, and shares positions with its parent.
static void fork_one(void (*next)(void))
{
	int status = 0;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		for (int at = 0; at < 5; at++)
			next();
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, &status, 0);
	told(status, "child");
}

// Becomes the same program anew, which inherits the open descriptors.
static void become_anew(void)
{
	char words[SLOTS + 3][32], *arguments[SLOTS + 6] = { "random_names", "resume" };
	unsigned long long numbers[3] = { state, (unsigned long long)step, (unsigned long long)steps };
	if (kept.bytes != NULL)
		close(kept.fd);
	for (int at = 0; at < SLOTS + 3; at++) {
		snprintf(words[at], sizeof words[at], "%lld", (long long)(at < 3 ? (long long)numbers[at] : slots[at - 3]));
		arguments[at + 2] = words[at];
		if (at >= 3 && slots[at - 3] >= 0)
			fcntl(slots[at - 3], F_SETFD, 0);
	}
	fflush(stdout);
	execv("/proc/self/exe", arguments);
	told(-1, "exec");
}

static void next(void)
{
	switch (random_below(100)) {
	case 0 ... 11: open_one(); break;
	case 12: open_without_a_name(); break;
	case 13 ... 16: close_or_duplicate(); break;
	case 17 ... 26: use(); break;
	case 27 ... 36: transfer(); break;
	case 37 ... 40: move(); break;
	case 41 ... 44: change_length(); break;
	case 45 ... 47: copy(); break;
	case 48 ... 52: map(); break;
	case 53 ... 56: flags_and_locks(); break;
	case 57 ... 76: change_a_name(); break;
	case 77 ... 88: change_an_attribute(); break;
	default: look();
	}
}

int main(int count, char **words)
{
	signal(SIGPIPE, SIG_IGN);
	if (count == SLOTS + 5 && strcmp(words[1], "resume") == 0) {
		is_anew = 1, state = (uint64_t)strtoll(words[2], NULL, 10), step = atol(words[3]) + 1, steps = atol(words[4]);
		for (int at = 0; at < SLOTS; at++)
			slots[at] = atoi(words[at + 5]);
	} else if (count == 4) {
		for (int at = 0; at < SLOTS; at++)
			slots[at] = -1;
		state = strtoull(words[2], NULL, 10), steps = atol(words[3]);
		umask(022);
		if (chdir(words[1]) != 0 || mkdir("tree", 0755) != 0 || chdir("tree") != 0 || mkdir("d", 0755) != 0 || mkdir("e", 0755) != 0)
			return 2;
	} else {
		return 2;
	}
	for (; step < steps; step++) {
		switch (random_below(100)) {
		case 0: fork_one(next); break;
		case 1: if (random_below(4) == 0) become_anew(); break;
		default: next();
		}
	}
	for (int at = 0; at < SLOTS; at++)
		told(lseek(slots[at], 0, SEEK_CUR), "position %d", at);
	describe_tree();
	return 0;
}
