/* What goes wrong, and what is said of it. Usage: errors FOLDER */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vmio.h>

static int failures;

/* The status, the errno, and a part of the message. */
static void expect(int line, vmio_status got, vmio_status wanted, int wanted_errno, const char *part)
{
    char message[512] = "";
    size_t length = vmio_last_error(message, sizeof message);
    if (got != wanted || vmio_last_errno() != wanted_errno || strstr(message, part) == NULL ||
        length != strlen(message)) {
        fprintf(stderr, "line %d: %s, errno %d: %s\n", line, vmio_strerror(got), vmio_last_errno(), message);
        failures++;
    }
}
#define EXPECT(got, wanted, wanted_errno, part) expect(__LINE__, (got), (wanted), (wanted_errno), (part))

static void check(int line, int holds)
{
    if (!holds) {
        fprintf(stderr, "line %d: does not hold\n", line);
        failures++;
    }
}
#define CHECK(condition) check(__LINE__, (condition))

static void options_that_make_no_sense(void)
{
    struct vmio_cache *cache = (struct vmio_cache *)8;
    struct vmio_cache_options options = {.size = sizeof options, .capacity_bytes = 1 << 20};
    EXPECT(vmio_cache_new(&options, &cache), VMIO_ERROR_INVALID, 0, "capacity is 1048576 bytes: between 6 MiB");
    CHECK(cache == NULL);
    EXPECT(vmio_cache_new(NULL, &cache), VMIO_ERROR_INVALID, 0, "capacity is 0 bytes");
    EXPECT(vmio_cache_new(&options, NULL), VMIO_ERROR_INVALID, 0, "cache is NULL");
    options.capacity_bytes = 8 << 20;
    options.engine = 99;
    EXPECT(vmio_cache_new(&options, &cache), VMIO_ERROR_INVALID, 0, "options.engine is 99");
    options.engine = 0;
    options.size = 0;
    EXPECT(vmio_cache_new(&options, &cache), VMIO_ERROR_INVALID, 0, "options.size is 0");

    /* Of a later version, with a field that this one does not have. */
    struct {
        struct vmio_cache_options known;
        uint64_t later;
    } newer = {.known = {.size = sizeof newer, .capacity_bytes = 8 << 20}, .later = 1};
    EXPECT(vmio_cache_new(&newer.known, &cache), VMIO_ERROR_INVALID, 0, "does not know");
    newer.later = 0;
    CHECK(vmio_cache_new(&newer.known, &cache) == VMIO_OK);
    EXPECT(vmio_cache_resize(cache, 1 << 20), VMIO_ERROR_INVALID, 0, "capacity is 1048576 bytes: between 6 MiB");
    EXPECT(vmio_cache_resize(NULL, 8 << 20), VMIO_ERROR_INVALID, 0, "cache is NULL");
    struct vmio_stats stats = {.size = sizeof stats};
    CHECK(vmio_cache_resize(cache, 16 << 20) == VMIO_OK && vmio_cache_resize(cache, 6 << 20) == VMIO_OK);
    CHECK(vmio_cache_stats(cache, &stats) == VMIO_OK && stats.capacity_pages == 256);
    CHECK(offsetof(struct vmio_stats, minor_faults) == offsetof(struct vmio_stats, soft_misses));
    vmio_cache_free(cache);
}

static void files(struct vmio_cache *cache, const char *folder)
{
    char path[512];
    struct vmio_mapping *map = NULL;
    struct vmio_open_options options = {.size = sizeof options};

    EXPECT(vmio_open(cache, "/no/such/file", NULL, &map), VMIO_ERROR_OPEN, ENOENT, "/no/such/file");
    EXPECT(vmio_open(cache, NULL, NULL, &map), VMIO_ERROR_INVALID, 0, "path is NULL");
    EXPECT(vmio_open(NULL, "/no/such/file", NULL, &map), VMIO_ERROR_INVALID, 0, "cache is NULL");
    EXPECT(vmio_open(cache, folder, &options, &map), VMIO_ERROR_OPEN, EISDIR, folder);
    options.priority = 128;
    EXPECT(vmio_open(cache, folder, &options, &map), VMIO_ERROR_INVALID, 0, "VMIO_PRIORITY_SET");
    options.priority = VMIO_PRIORITY_SET + 255;
    options.access = VMIO_READ_ONLY;
    options.create = VMIO_CREATE_EMPTY;
    EXPECT(vmio_open(cache, folder, &options, &map), VMIO_ERROR_INVALID, 0, "read-only");

    snprintf(path, sizeof path, "%s/data", folder);
    options.access = VMIO_READ_WRITE;
    options.len = 3 * 4096 + 100;
    CHECK(vmio_open(cache, path, &options, &map) == VMIO_OK);
    CHECK(vmio_len(map) == options.len);
    memset(vmio_pointer(map), 'x', options.len);
    uint8_t pages[5] = {9, 9, 9, 9, 9};
    uint64_t resident = 0;
    CHECK(vmio_residency(map, 0, VMIO_TO_END, pages, sizeof pages, &resident) == VMIO_OK);
    CHECK(resident == 4 && pages[0] == 1 && pages[3] == 1 && pages[4] == 9);
    CHECK(vmio_is_resident(map, 0) && !vmio_is_resident(map, 1 << 20));
    EXPECT(vmio_ensure(map, 4096, options.len), VMIO_ERROR_OUT_OF_RANGE, 0, "12388 bytes");
    EXPECT(vmio_advise(map, UINT64_MAX - 1, 9, VMIO_ADVICE_RANDOM, 0), VMIO_ERROR_OUT_OF_RANGE, 0, "outside");
    EXPECT(vmio_advise(map, 0, VMIO_TO_END, VMIO_ADVICE_PRIORITY, 256), VMIO_ERROR_INVALID, 0, "value is 256");
    EXPECT(vmio_advise(map, 0, VMIO_TO_END, 77, 0), VMIO_ERROR_INVALID, 0, "advice is 77");
    EXPECT(vmio_set_len(map, UINT64_C(1) << 40), VMIO_ERROR_OUT_OF_RANGE, 0, "reserved");

    struct vmio_sync_handle *sync = NULL;
    CHECK(vmio_sync_begin(map, &sync) == VMIO_OK && vmio_sync_wait(sync) == VMIO_OK);
    CHECK(vmio_flush(map, 0, VMIO_TO_END) == VMIO_OK && vmio_take_read_error(map) == VMIO_OK);
    CHECK(vmio_close(map) == VMIO_OK);

    options = (struct vmio_open_options){.size = sizeof options, .access = VMIO_READ_ONLY};
    CHECK(vmio_open(cache, path, &options, &map) == VMIO_OK);
    EXPECT(vmio_write_at(map, 0, "no", 2), VMIO_ERROR_READ_ONLY, 0, path);
    struct vmio_pinned *pinned = NULL;
    EXPECT(vmio_pin(map, 0, 4096, VMIO_READ_WRITE, &pinned), VMIO_ERROR_READ_ONLY, 0, path);
    CHECK(pinned == NULL);
    CHECK(vmio_pin(map, 0, 4096, VMIO_READ_ONLY, &pinned) == VMIO_OK);
    struct vmio_mapping *second = NULL;
    options.access = VMIO_READ_WRITE;
    EXPECT(vmio_open(cache, path, &options, &second), VMIO_ERROR_IN_USE, 0, "already mapped");
    char last[2] = "";
    CHECK(vmio_read_at(map, 3 * 4096 + 98, last, 2) == VMIO_OK && memcmp(last, "xx", 2) == 0);
    EXPECT(vmio_read_at(map, 3 * 4096 + 99, last, 2), VMIO_ERROR_OUT_OF_RANGE, 0, "outside");
    EXPECT(vmio_read_at(map, 0, NULL, 2), VMIO_ERROR_INVALID, 0, "NULL");
    struct vmio_range ranges[] = {{0, 4096}, {8192, VMIO_TO_END}};
    CHECK(vmio_prefetch(map, ranges, 2) == VMIO_OK);
    CHECK(vmio_close(map) == VMIO_OK);
    vmio_unpin(pinned); /* It has kept the mapping open. */
}

static void journals(struct vmio_cache *cache, const char *folder)
{
    char data[512], path[512];
    struct vmio_mapping *map = NULL;
    struct vmio_journal *journal = (struct vmio_journal *)8;
    struct vmio_journal_options how = {.size = sizeof how, .commit_reserve = 0.95};
    struct vmio_open_options options = {.size = sizeof options, .create = VMIO_CREATE_EMPTY, .len = 1 << 20};

    snprintf(data, sizeof data, "%s/atomic", folder);
    snprintf(path, sizeof path, "%s/journal", folder);
    EXPECT(vmio_journal_create(path, 4096, NULL, &journal), VMIO_ERROR_INVALID, 0, "at least 384 KiB");
    EXPECT(vmio_journal_create(path, 1 << 20, &how, &journal), VMIO_ERROR_INVALID, 0, "commit_reserve is 0.95");
    EXPECT(vmio_journal_open("/no/such/file", NULL, &journal), VMIO_ERROR_OPEN, ENOENT, "/no/such/file");
    CHECK(journal == NULL);
    CHECK(vmio_open(cache, data, &options, &map) == VMIO_OK);
    EXPECT(vmio_commit(map), VMIO_ERROR_UNSUPPORTED, 0, data);
    CHECK(vmio_close(map) == VMIO_OK);
    EXPECT(vmio_journal_open(data, NULL, &journal), VMIO_ERROR_JOURNAL, 0, data);

    CHECK(vmio_journal_create(path, 512 << 10, NULL, &journal) == VMIO_OK);
    options.journal = journal;
    if (vmio_cache_engine(cache) == VMIO_ENGINE_MANAGED) {
        EXPECT(vmio_open(cache, data, &options, &map), VMIO_ERROR_UNSUPPORTED, 0, "atomic");
        vmio_journal_close(journal);
        return;
    }
    CHECK(vmio_open(cache, data, &options, &map) == VMIO_OK);
    vmio_journal_close(journal); /* The mapping keeps it. */
    memset(vmio_pointer(map), 'x', 4096);
    CHECK(vmio_commit(map) == VMIO_OK);
    memset(vmio_pointer(map), 'y', 1 << 20);
    EXPECT(vmio_commit(map), VMIO_ERROR_JOURNAL_FULL, 0, path);
    vmio_close(map);
    char first = 0, second = 1;
    options = (struct vmio_open_options){.size = sizeof options};
    CHECK(vmio_open(cache, data, &options, &map) == VMIO_OK);
    CHECK(vmio_read_at(map, 0, &first, 1) == VMIO_OK && vmio_read_at(map, 4096, &second, 1) == VMIO_OK);
    CHECK(first == 'x' && second == 0);
    CHECK(vmio_close(map) == VMIO_OK);
}

static void nothing_is_allowed(void)
{
    vmio_cache_free(NULL);
    vmio_unpin(NULL);
    vmio_sync_detach(NULL);
    vmio_journal_close(NULL);
    CHECK(vmio_close(NULL) == VMIO_OK && vmio_sync_wait(NULL) == VMIO_OK);
    CHECK(vmio_pointer(NULL) == NULL && vmio_len(NULL) == 0 && !vmio_is_resident(NULL, 0));
    EXPECT(vmio_sync(NULL), VMIO_ERROR_INVALID, 0, "mapping is NULL");
    EXPECT(vmio_commit(NULL), VMIO_ERROR_INVALID, 0, "mapping is NULL");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        return 2;
    }
    CHECK(vmio_last_error(NULL, 0) == 0 && vmio_last_errno() == 0);
    CHECK(vmio_abi_version() == (VMIO_ABI_MAJOR << 16 | VMIO_ABI_MINOR));
    options_that_make_no_sense();

    struct vmio_cache *cache = NULL;
    struct vmio_cache_options options = {.size = sizeof options, .capacity_bytes = 8 << 20};
    CHECK(vmio_cache_new(&options, &cache) == VMIO_OK);
    files(cache, argv[1]);
    journals(cache, argv[1]);
    vmio_cache_free(cache);
    nothing_is_allowed();

    char cut[12];
    size_t length = vmio_last_error(cut, sizeof cut);
    CHECK(length == strlen("mapping is NULL") && strcmp(cut, "mapping is ") == 0);
    printf("%d failures\n", failures);
    return failures > 0;
}
