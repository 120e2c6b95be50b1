/*
 * An ordered log: records are appended to a mapped file that grows in place, and are acknowledged when they are durable.
 * At each start the log is read back, checked, and continued.
 *
 *     log_append FILE RECORDS [auto|sigbus|reader-thread|managed]
 *     cc log_append.c $(pkg-config --cflags --libs vmio)
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vmio.h>

enum { BATCH = 100, TEXT_BYTES = 240 };
static const uint64_t GROWTH_BYTES = 1 << 20;

/* What is no record yet is zeros, as a file that has just grown is. */
struct record {
    uint64_t number; /* 1, 2, 3, ... */
    uint64_t check;
    char text[TEXT_BYTES];
};

static void must(vmio_status status, const char *what)
{
    if (status != VMIO_OK) {
        char message[512];
        vmio_last_error(message, sizeof message);
        fprintf(stderr, "%s: %s: %s\n", what, vmio_strerror(status), message);
        exit(1);
    }
}

static uint32_t engine_named(const char *name)
{
    static const char *const names[] = {"auto", "sigbus", "reader-thread", "managed"};
    for (uint32_t engine = VMIO_ENGINE_AUTO; engine <= VMIO_ENGINE_MANAGED; engine++) {
        if (strcmp(name, names[engine]) == 0) {
            return engine;
        }
    }
    fprintf(stderr, "%s is no engine\n", name);
    exit(2);
}

static uint64_t check_of(const struct record *record)
{
    uint64_t sum = 0xcbf29ce484222325 ^ record->number;
    for (size_t at = 0; at < TEXT_BYTES; at++) {
        sum = (sum ^ (unsigned char)record->text[at]) * 0x100000001b3;
    }
    return sum;
}

/* How many records there are from the start on, whole and in order. */
static uint64_t count_records(const struct vmio_mapping *log)
{
    const struct record *records = vmio_pointer(log);
    uint64_t count = 0;
    while ((count + 1) * sizeof *records <= vmio_len(log) && records[count].number == count + 1 &&
           records[count].check == check_of(&records[count])) {
        count++;
    }
    return count;
}

static void append(const struct vmio_mapping *log, uint64_t number)
{
    uint64_t end = number * sizeof(struct record);
    if (end > vmio_len(log)) {
        must(vmio_set_len(log, vmio_len(log) + GROWTH_BYTES), "growing the log");
    }
    struct record *record = (struct record *)vmio_pointer(log) + (number - 1);
    record->number = number;
    snprintf(record->text, sizeof record->text, "record %" PRIu64 " of an ordered log", number);
    record->check = check_of(record);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s FILE RECORDS [ENGINE]\n", argv[0]);
        return 2;
    }
    struct vmio_cache_options cache_options = {
        .size = sizeof cache_options,
        .capacity_bytes = 8 << 20,
        .engine = engine_named(argc > 3 ? argv[3] : "auto"),
    };
    struct vmio_open_options options = {
        .size = sizeof options,
        .create = VMIO_CREATE_IF_MISSING,
        .len = GROWTH_BYTES,
        .reserve_bytes = 1 << 30,
    };
    struct vmio_cache *cache;
    struct vmio_mapping *log;
    must(vmio_cache_new(&cache_options, &cache), "making the cache");
    must(vmio_open(cache, argv[1], &options, &log), "opening the log");

    uint64_t found = count_records(log);
    uint64_t last = found + strtoull(argv[2], NULL, 10);
    for (uint64_t number = found + 1; number <= last; number++) {
        append(log, number);
        if (number % BATCH == 0 || number == last) {
            must(vmio_sync(log), "syncing the log"); /* Up to here it is durable. */
        }
    }
    printf("found %" PRIu64 ", appended %" PRIu64 "\n", found, last - found);

    must(vmio_close(log), "closing the log");
    vmio_cache_free(cache);
    return 0;
}
