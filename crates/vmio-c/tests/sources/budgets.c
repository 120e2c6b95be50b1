/* Floors, ceilings, priorities, and a capacity that vmio chooses. Usage: budgets FOLDER */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <vmio.h>

#define PAGE 4096
#define MIB (1 << 20)

static int failures;

static void check(int line, int holds)
{
    char message[512] = "";
    if (!holds) {
        vmio_last_error(message, sizeof message);
        fprintf(stderr, "line %d: does not hold; the last error is: %s\n", line, message);
        failures++;
    }
}
#define CHECK(condition) check(__LINE__, (condition))

static int refused(vmio_status got, vmio_status wanted, const char *part)
{
    char message[512] = "";
    vmio_last_error(message, sizeof message);
    return got == wanted && strstr(message, part) != NULL;
}

static struct vmio_mapping *opened(struct vmio_cache *cache, const char *path, struct vmio_open_options how)
{
    struct vmio_mapping *map = NULL;
    CHECK(vmio_open(cache, path, &how, &map) == VMIO_OK);
    return map;
}

static void load_all(struct vmio_mapping *map)
{
    const volatile char *bytes = vmio_pointer(map);
    for (uint64_t at = 0; at < vmio_len(map); at += PAGE) {
        CHECK(bytes[at] == 0);
    }
}

static uint64_t resident_pages(struct vmio_mapping *map)
{
    uint64_t pages = 0;
    CHECK(vmio_residency(map, 0, VMIO_TO_END, NULL, 0, &pages) == VMIO_OK);
    return pages;
}

static void capacities(void)
{
    struct vmio_cache *cache = NULL;
    struct vmio_cache_options how = {.size = sizeof how, .capacity_bytes = 64 * MIB, .capacity_min_bytes = 1 * MIB};
    struct vmio_stats stats = {.size = sizeof stats};
    CHECK(refused(vmio_cache_new(&how, &cache), VMIO_ERROR_INVALID, "capacity"));
    how.capacity_min_bytes = 65 * MIB;
    CHECK(refused(vmio_cache_new(&how, &cache), VMIO_ERROR_INVALID, "capacity"));
    how.capacity_min_bytes = 8 * MIB;
    CHECK(vmio_cache_new(&how, &cache) == VMIO_OK && vmio_cache_stats(cache, &stats) == VMIO_OK);
    CHECK(stats.capacity_pages <= 64 * MIB / PAGE);
    vmio_cache_free(cache);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        return 2;
    }
    capacities();

    char small[512], large[512], capped[512];
    snprintf(small, sizeof small, "%s/small", argv[1]);
    snprintf(large, sizeof large, "%s/large", argv[1]);
    snprintf(capped, sizeof capped, "%s/capped", argv[1]);
    struct vmio_cache *cache = NULL;
    struct vmio_mapping *map = NULL;
    struct vmio_cache_options memory = {.size = sizeof memory, .capacity_bytes = 48 * MIB};
    struct vmio_open_options how = {.size = sizeof how, .create = VMIO_CREATE_EMPTY, .len = 12 * MIB};
    CHECK(vmio_cache_new(&memory, &cache) == VMIO_OK);
    how.floor_bytes = 16 * MIB;
    if (vmio_cache_engine(cache) == VMIO_ENGINE_MANAGED) {
        CHECK(refused(vmio_open(cache, small, &how, &map), VMIO_ERROR_UNSUPPORTED, "floor"));
        printf("%d failures\n", failures);
        return failures > 0;
    }
    how.priority = VMIO_PRIORITY_SET + 255;
    struct vmio_mapping *kept = opened(cache, small, how);
    load_all(kept);
    CHECK(resident_pages(kept) == 12 * MIB / PAGE);
    struct vmio_stats stats = {.size = sizeof stats};
    CHECK(vmio_cache_stats(cache, &stats) == VMIO_OK);
    CHECK(stats.resident_by_priority[7] == 12 * MIB / PAGE && stats.resident_by_priority[4] == 0);

    /* Priority 255 goes first, were it not for the floor. */
    how = (struct vmio_open_options){.size = sizeof how, .create = VMIO_CREATE_EMPTY, .len = 96 * MIB};
    struct vmio_mapping *scanned = opened(cache, large, how);
    load_all(scanned);
    CHECK(resident_pages(kept) == 12 * MIB / PAGE);

    how.ceiling_bytes = 4 * MIB;
    struct vmio_mapping *limited = opened(cache, capped, how);
    load_all(limited);
    CHECK(resident_pages(limited) <= 4 * MIB / PAGE);
    CHECK(vmio_close(limited) == VMIO_OK && vmio_close(scanned) == VMIO_OK);

    how.ceiling_bytes = 1;
    CHECK(refused(vmio_open(cache, capped, &how, &map), VMIO_ERROR_INVALID, "ceiling"));
    how.ceiling_bytes = 0;
    how.floor_bytes = 40 * MIB;
    CHECK(refused(vmio_open(cache, capped, &how, &map), VMIO_ERROR_CACHE_FULL, "floor"));
    CHECK(vmio_close(kept) == VMIO_OK);
    vmio_cache_free(cache);
    printf("%d failures\n", failures);
    return failures > 0;
}
