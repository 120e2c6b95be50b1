/*
 * Counts the words of a file by several threads, through a cache that may be far smaller than the file.
 *
 *     word_count FILE CACHE_BYTES THREADS [auto|sigbus|reader-thread|managed]
 *     cc -pthread word_count.c $(pkg-config --cflags --libs vmio)
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vmio.h>

enum { THREADS_MAX = 64 };

struct part {
    pthread_t thread;
    const char *text; /* Of the whole file. */
    uint64_t from, to;
    uint64_t words;
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

static int is_space(char letter)
{
    return letter == ' ' || letter == '\n' || letter == '\t' || letter == '\r';
}

/* Counts the words that begin in a part; one that only goes on there is its neighbour's. */
static void *count_part(void *argument)
{
    struct part *part = argument;
    int in_word = part->from > 0 && !is_space(part->text[part->from - 1]);
    for (uint64_t at = part->from; at < part->to; at++) {
        int space = is_space(part->text[at]);
        part->words += !space && !in_word;
        in_word = !space;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    unsigned long threads = argc < 4 ? 0 : strtoul(argv[3], NULL, 10);
    if (threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "usage: %s FILE CACHE_BYTES THREADS (1 to %d) [ENGINE]\n", argv[0], THREADS_MAX);
        return 2;
    }
    struct vmio_cache_options cache_options = {
        .size = sizeof cache_options,
        .capacity_bytes = strtoull(argv[2], NULL, 10),
        .engine = engine_named(argc > 4 ? argv[4] : "auto"),
    };
    struct vmio_open_options options = {.size = sizeof options, .access = VMIO_READ_ONLY};
    struct vmio_cache *cache;
    struct vmio_mapping *file;
    must(vmio_cache_new(&cache_options, &cache), "making the cache");
    must(vmio_open(cache, argv[1], &options, &file), "opening the file");
    must(vmio_advise(file, 0, VMIO_TO_END, VMIO_ADVICE_SEQUENTIAL, 0), "advising");

    static struct part parts[THREADS_MAX];
    uint64_t len = vmio_len(file);
    for (unsigned long n = 0; n < threads; n++) {
        parts[n].text = vmio_pointer(file);
        parts[n].from = len * n / threads;
        parts[n].to = len * (n + 1) / threads;
        if (pthread_create(&parts[n].thread, NULL, count_part, &parts[n]) != 0) {
            fprintf(stderr, "no thread to be had\n");
            return 1;
        }
    }
    uint64_t words = 0;
    for (unsigned long n = 0; n < threads; n++) {
        pthread_join(parts[n].thread, NULL);
        words += parts[n].words;
    }

    struct vmio_stats stats = {.size = sizeof stats};
    must(vmio_cache_stats(cache, &stats), "asking for the counts");
    printf("%" PRIu64 " words in %" PRIu64 " bytes\n", words, len);
    printf("%s\n", stats.resident_pages <= stats.capacity_pages ? "within the cache" : "beyond the cache");

    must(vmio_close(file), "closing the file");
    vmio_cache_free(cache);
    return 0;
}
