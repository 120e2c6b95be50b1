/*
 * Stores counters to two files in turn, and commits them together.
 *
 * Usage: commit_loop create|run|verify JOURNAL FILE FILE
 *
 * `run` never ends: it prints the newest counter after each commit, and goes on from where it was killed. `verify` prints
 * the newest counter when both files are exactly as the commit of that counter left them, whatever was under way.
 * Ends with status 77 where atomic mappings are not available.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vmio.h>

enum {
    PAGE_BYTES = 4096,
    /* Of either file; the cache has room for 256. */
    PAGES = 900,
    /* More than the cache can hold, so that some leave memory before their commit. */
    STORES = 160
};

static void check(vmio_status status, const char *what)
{
    char message[512];
    if (status == VMIO_OK)
        return;
    vmio_last_error(message, sizeof message);
    fprintf(stderr, "%s: %s: %s\n", what, vmio_strerror(status), message);
    exit(1);
}

/* Counter n is in page n modulo PAGES, until n + PAGES takes its place. */
static volatile uint64_t *word(const struct vmio_mapping *map, uint64_t page)
{
    return (volatile uint64_t *)((char *)vmio_pointer(map) + page * PAGE_BYTES);
}

static uint64_t newest(const struct vmio_mapping *map)
{
    uint64_t newest = 0;
    for (uint64_t page = 0; page < PAGES; page++)
        newest = *word(map, page) > newest ? *word(map, page) : newest;
    return newest;
}

/* Whether each page holds what it held when `last` was the newest counter. */
static void verify(const struct vmio_mapping *map, uint64_t last, const char *name)
{
    for (uint64_t page = 0; page < PAGES; page++) {
        uint64_t age = (last + PAGES - page) % PAGES;
        uint64_t expected = last > age ? last - age : 0;
        if (*word(map, page) == expected)
            continue;
        fprintf(stderr, "page %llu of %s holds %llu, not %llu: the newest counter is %llu\n", (unsigned long long)page,
                name, (unsigned long long)*word(map, page), (unsigned long long)expected, (unsigned long long)last);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    struct vmio_cache_options memory = {.size = sizeof memory, .capacity_bytes = 6 << 20};
    struct vmio_cache *cache = NULL;
    struct vmio_journal *journal = NULL;
    struct vmio_mapping *maps[2] = {NULL, NULL};

    if (argc != 5)
        return 2;
    check(vmio_cache_new(&memory, &cache), "cache");
    if (vmio_cache_engine(cache) == VMIO_ENGINE_MANAGED)
        return 77;
    if (strcmp(argv[1], "create") == 0)
        check(vmio_journal_create(argv[2], 24 << 20, NULL, &journal), argv[2]);
    else
        check(vmio_journal_open(argv[2], NULL, &journal), argv[2]);
    for (int file = 0; file < 2; file++) {
        struct vmio_open_options how = {.size = sizeof how, .create = VMIO_CREATE_IF_MISSING,
                                        .len = (uint64_t)PAGES * PAGE_BYTES, .journal = journal};
        check(vmio_open(cache, argv[3 + file], &how, &maps[file]), argv[3 + file]);
    }
    /* The mappings keep the journal. */
    vmio_journal_close(journal);

    uint64_t last = newest(maps[0]);
    verify(maps[0], last, argv[3]);
    verify(maps[1], last, argv[4]);
    if (strcmp(argv[1], "run") == 0) {
        for (;;) {
            for (int store = 0; store < STORES; store++) {
                last++;
                *word(maps[0], last % PAGES) = last;
                *word(maps[1], last % PAGES) = last;
            }
            check(vmio_commit(maps[0]), "commit");
            printf("%llu\n", (unsigned long long)last);
            fflush(stdout);
        }
    }
    if (last % STORES != 0) {
        fprintf(stderr, "%llu is from the middle of a commit\n", (unsigned long long)last);
        return 1;
    }
    printf("%llu\n", (unsigned long long)last);
    check(vmio_close(maps[0]), "close");
    check(vmio_close(maps[1]), "close");
    vmio_cache_free(cache);
    return 0;
}
