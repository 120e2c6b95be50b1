// Paths for random_names.c, and the calls that take them.
#define _GNU_SOURCE
#include "random_names.h"
#include <dirent.h>
#include <ftw.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <utime.h>

// Mostly a path of one of a few files in a few folders; sometimes through a link, of a missing file, or too long.
void random_path(char *path)
{
	static const char *const before[] = { "", "", "", "", "d/", "d/", "e/", "d/e/", "./", "s/", "d//", "missing/", "a/" };
	static const char *const names[] = { "a", "a", "b", "b", "c", "d", "e", "s", "t", "p", "." };
	static const char *const after[] = { "", "", "", "", "", "", "", "", "", "", "/", "/." };
	int length = random_below(60);
	if (length == 0) {
		static const int lengths[] = { 0, 255, 256, 4095, 5000 };
		int bytes = lengths[random_below(5)];
		for (int at = 0; at < bytes; at++)
			path[at] = bytes > 256 && at % 2 ? '/' : 'l';
		path[bytes] = 0;
		return;
	}
	snprintf(path, PATH_BYTES, "%s%s%s", before[random_below(13)], names[random_below(11)], after[random_below(12)]);
}

int random_folder(void)
{
	return random_below(5) ? AT_FDCWD : slots[random_slot()];
}

mode_t random_mode(void)
{
	static const mode_t modes[] = { 0644, 0644, 0600, 0666, 0755, 0700, 0444, 0222, 0, 04755, 02755, 01777 };
	return modes[random_below(12)];
}

void change_a_name(void)
{
	char one[PATH_BYTES], two[PATH_BYTES];
	random_path(one);
	random_path(two);
	int from = random_folder(), to = random_folder();
	mode_t mode = random_mode() | (random_below(3) ? 0700 : 0);
	ssize_t done = -1;
	int kind = random_below(24);
	switch (kind) {
	case 0 ... 1: done = mkdir(one, mode); break;
	case 2: done = mkdirat(from, one, mode); break;
	case 3: done = rmdir(one); break;
	case 4 ... 5: done = unlink(one); break;
	case 6: done = unlinkat(from, one, random_below(2) ? AT_REMOVEDIR : 0); break;
	case 7: done = remove(one); break;
	case 8 ... 10: done = rename(one, two); break;
	case 11: done = renameat(from, one, to, two); break;
	case 12 ... 13: done = renameat2(from, one, to, two, random_below(4)); break;
	case 14 ... 15: done = link(one, two); break;
	case 16: done = linkat(from, one, to, two, random_below(2) ? AT_SYMLINK_FOLLOW : 0); break;
	case 17 ... 18: done = symlink(one, random_below(2) ? "s" : two); break;
	case 19: done = symlinkat(one, from, two); break;
	case 20: done = mkfifo(one, mode); break;
	case 21: done = mkfifoat(from, "p", mode); break;
	case 22: done = mknod(one, S_IFREG | mode, 0); break;
	case 23: done = mknodat(from, one, S_IFCHR | mode, makedev(1, 3)); break;
	}
	told(done, "name %d %.40s %.40s", kind, one, two);
}

void change_an_attribute(void)
{
	char path[PATH_BYTES];
	random_path(path);
	int folder = random_folder(), which = random_slot(), fd = slots[which], flags = random_below(2) ? AT_SYMLINK_NOFOLLOW : 0;
	mode_t mode = random_mode() | (random_below(3) ? 0700 : 0);
	uid_t user = random_below(3) ? (uid_t)-1 : random_below(2) ? 65534 : geteuid();
	gid_t group = random_below(3) ? (gid_t)-1 : random_below(2) ? 65534 : getegid();
	struct timespec times[] = { { 1000, 0 }, { random_below(100000), 5000 } };
	struct timeval microseconds[] = { { 1000, 0 }, { random_below(100000), 5 } };
	struct utimbuf seconds = { 1000, random_below(100000) };
	const char *name = random_below(2) ? "user.one" : "user.two";
	struct stat found;
	ssize_t done = -1;
	int kind = random_below(22);
	switch (kind) {
	case 0 ... 1: done = chmod(path, mode); break;
	case 2: done = fchmod(fd, mode); break;
	case 3: done = fchmodat(folder, path, mode, flags); break;
	case 4: done = chown(path, user, group); break;
	case 5: done = lchown(path, user, group); break;
	case 6: done = fchown(fd, user, group); break;
	case 7: done = fchownat(folder, path, user, group, flags); break;
	case 8: done = fchownat(fd, "", user, group, AT_EMPTY_PATH); break;
	case 9: done = utimensat(folder, path, times, flags); break;
	case 10: done = futimens(fd, times); break;
	case 11: done = utimes(path, microseconds); break;
	case 12: done = lutimes(path, microseconds); break;
	case 13: done = futimes(fd, microseconds); break;
	case 14: done = futimesat(folder, path, microseconds); break;
	case 15: done = utime(path, &seconds); break;
	case 16: done = setxattr(path, name, path, 5, random_below(3)); break;
	case 17: done = lsetxattr(path, name, path, 5, 0); break;
	case 18: done = fsetxattr(fd, name, path, 5, 0); break;
	case 19: done = removexattr(path, name); break;
	case 20: done = fremovexattr(fd, name); break;
	case 21: umask(random_below(2) ? 022 : 077); done = 0; break;
	}
	told(done, "attribute %d %d %.40s", kind, which, path);
	// Prints the time of a file whose time was set to long ago.
	if (kind >= 9 && kind <= 15 && done == 0 && fstatat(AT_FDCWD, path, &found, AT_SYMLINK_NOFOLLOW) == 0 && found.st_mtime < 200000 && !S_ISREG(found.st_mode))
		told((ssize_t)found.st_mtime, "time");
}

static void describe(const char *call, ssize_t done, const struct stat *found)
{
	told(done, "%s", call);
	if (done == 0)
		printf("  %o %lu %u %u %lld\n", found->st_mode, (unsigned long)found->st_nlink, found->st_uid, found->st_gid,
		       S_ISDIR(found->st_mode) ? 0 : (long long)found->st_size);
}

static int is_name(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

void look(void)
{
	char path[PATH_BYTES], target[PATH_BYTES];
	random_path(path);
	int folder = random_folder(), which = random_slot();
	struct stat found;
	struct statx wide;
	struct dirent **entries;
	ssize_t done;
	switch (random_below(9)) {
	case 0: done = stat(path, &found), describe("stat", done, &found); break;
	case 1: done = lstat(path, &found), describe("lstat", done, &found); break;
	case 2 ... 3: done = fstat(slots[which], &found), describe("fstat", done, &found); break;
	case 4: done = fstatat(folder, path, &found, AT_SYMLINK_NOFOLLOW), describe("fstatat", done, &found); break;
	case 5:
		done = statx(folder, path, 0, STATX_SIZE | STATX_MODE, &wide);
		told(done, "statx %o %lld", done ? 0 : wide.stx_mode, done || S_ISDIR(wide.stx_mode) ? 0 : (long long)wide.stx_size);
		break;
	case 6: told(faccessat(folder, path, random_below(8), 0), "access %.40s", path); break;
	case 7:
		done = readlinkat(folder, path, target, sizeof target - 1);
		told(done, "readlink %.40s %.*s", path, done < 0 ? 0 : done > 40 ? 40 : (int)done, target);
		break;
	default:
		done = scandir(path, &entries, is_name, alphasort);
		told(done, "scandir %.40s", path);
		for (ssize_t at = 0; at < done; at++) {
			printf("  %.40s\n", entries[at]->d_name);
			free(entries[at]);
		}
		if (done >= 0)
			free(entries);
	}
}

static char *entries[100000];
static size_t entry_count;

static int describe_entry(const char *path, const struct stat *found, int kind, struct FTW *place)
{
	static const struct stat nothing;
	(void)place;
	// This user may not read its folder.
	if (kind == FTW_NS)
		found = &nothing;
	char line[PATH_BYTES + 600], names[300], block[65536], target[5000];
	ssize_t listed = llistxattr(path, names, sizeof names), linked = readlink(path, target, sizeof target - 1), done;
	uint32_t sum = 1;
	int fd = S_ISREG(found->st_mode) ? open(path, O_RDONLY | O_NOFOLLOW) : -1;
	while (fd >= 0 && (done = read(fd, block, sizeof block)) > 0)
		for (ssize_t at = 0; at < done; at++)
			sum = sum * 31 + (unsigned char)block[at];
	if (fd >= 0)
		close(fd);
	snprintf(line, sizeof line, "%s %o %lu %u %u %lld %u %zd %.*s", path, found->st_mode, (unsigned long)found->st_nlink, found->st_uid,
		 found->st_gid, S_ISDIR(found->st_mode) ? 0 : (long long)found->st_size, sum, listed, linked < 0 ? 0 : (int)linked, target);
	if (entry_count < sizeof entries / sizeof *entries)
		entries[entry_count++] = strdup(line);
	return 0;
}

static int compare(const void *one, const void *other)
{
	return strcmp(*(char *const *)one, *(char *const *)other);
}

// All entries of the folder, with their contents.
void describe_tree(void)
{
	nftw(".", describe_entry, 20, FTW_PHYS);
	qsort(entries, entry_count, sizeof *entries, compare);
	for (size_t at = 0; at < entry_count; at++)
		puts(entries[at]);
}
