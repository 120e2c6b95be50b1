/* An adaptive radix tree in a mapped file, as P-ART is one: random records are inserted, each durable before the next, and found again, for `vmio run`.
 * Prefixes are not compressed, since random keys share few bytes.
 *
 * usage: radix FILE insert RECORDS, then radix FILE get GETS */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "clock_and_numbers.h"

enum { FILE_BYTES = 256 << 20, LINE_BYTES = 64, VALUE_BYTES = 184, KEY_BYTES = 8 };

/* The file begins with it. A reference is an offset in the file: 0 is none, and an odd one is that of a leaf, plus one. */
struct header {
    uint64_t used, records, root;
};

struct leaf {
    uint64_t key;
    char value[VALUE_BYTES];
};

/* What all nodes begin with. Behind it are the bytes of the children, or for 48 children the place of each byte's child, plus one. */
struct node {
    uint16_t kind, count;
    uint8_t bytes[4];
};

enum kind { OF_4, OF_16, OF_48, OF_256 };
static const uint32_t children_of[] = {4, 16, 48, 256};
static const uint32_t children_at[] = {8, 24, 264, 8};

static char *file;
static struct header *header;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* tests/vm/qemu/instructions.c counts from one to the next. */
static void mark(void) { __asm__ volatile("xchg %%bx, %%bx" ::: "memory"); }

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

/* The nth key: random, and another one for each n. */
static uint64_t key_of(uint64_t n) { return next(&n); }

static uint8_t byte_of(uint64_t key, unsigned depth) { return key >> 8 * (KEY_BYTES - 1 - depth); }

static void fence(void) { __asm__ volatile("sfence" ::: "memory"); }

/* Has the processor write back what was stored. */
static void write_back(const void *from, size_t bytes) {
    const char *end = (const char *)from + bytes;
    for (const char *line = (const char *)((uintptr_t)from & -LINE_BYTES); line < end; line += LINE_BYTES)
        __asm__ volatile("clflush %0" ::"m"(*line) : "memory");
}

/* Others see it, once all before it is durable. */
static void publish(uint64_t *slot, uint64_t reference) {
    fence();
    *(volatile uint64_t *)slot = reference;
    write_back(slot, sizeof *slot);
    fence();
}

/* Whole cache lines of zeros, which the file has beside no others. */
static uint64_t allocated(size_t bytes) {
    uint64_t at = header->used;
    bytes = (bytes + LINE_BYTES - 1) & -LINE_BYTES;
    if (at + bytes > FILE_BYTES) fprintf(stderr, "the file is full\n"), exit(1);
    header->used = at + bytes;
    write_back(header, sizeof *header);
    return at;
}

static uint64_t *children(struct node *node) { return (uint64_t *)((char *)node + children_at[node->kind]); }

/* The slot of a byte's child, NULL if there is none. */
static uint64_t *slot_of(struct node *node, uint8_t byte) {
    uint64_t *slots = children(node);
    if (node->kind == OF_256) return slots[byte] ? &slots[byte] : NULL;
    if (node->kind == OF_48) return node->bytes[byte] ? &slots[node->bytes[byte] - 1] : NULL;
    for (unsigned n = 0; n < node->count; n++)
        if (node->bytes[n] == byte) return &slots[n];
    return NULL;
}

/* Adds a child to a node that has room. */
static void add(struct node *node, uint8_t byte, uint64_t child) {
    uint64_t *slots = children(node), *slot = node->kind == OF_256 ? &slots[byte] : &slots[node->count];
    publish(slot, child);
    if (node->kind == OF_48) node->bytes[byte] = node->count + 1;
    else if (node->kind != OF_256) node->bytes[node->count] = byte;
    node->count++;
    write_back(node->bytes + (node->kind == OF_48 ? byte : 0), 1);
    write_back(node, sizeof *node);
    fence();
}

static uint64_t new_node(enum kind kind) {
    uint64_t at = allocated(children_at[kind] + children_of[kind] * sizeof(uint64_t));
    ((struct node *)(file + at))->kind = kind;
    return at;
}

/* A copy of a node that is full, of the next kind. */
static uint64_t grown(struct node *old) {
    uint64_t at = new_node(old->kind + 1);
    struct node *node = (struct node *)(file + at);
    uint64_t *from = children(old), *to = children(node);
    node->count = old->count;
    if (node->kind == OF_16) {
        memcpy(node->bytes, old->bytes, old->count);
        memcpy(to, from, old->count * sizeof *to);
    } else if (node->kind == OF_48) {
        for (unsigned n = 0; n < old->count; n++) node->bytes[old->bytes[n]] = n + 1;
        memcpy(to, from, old->count * sizeof *to);
    } else {
        for (unsigned byte = 0; byte < 256; byte++)
            if (old->bytes[byte]) to[byte] = from[old->bytes[byte] - 1];
    }
    write_back(node, (char *)(to + children_of[node->kind]) - (char *)node);
    return at;
}

static struct leaf *leaf_of(uint64_t reference) { return (struct leaf *)(file + (reference - 1)); }

static void insert(uint64_t key) {
    uint64_t at = allocated(sizeof(struct leaf)) + 1;
    struct leaf *leaf = leaf_of(at);
    leaf->key = key;
    memset(leaf->value, (int)key, VALUE_BYTES);
    write_back(leaf, sizeof *leaf);
    uint64_t *reference = &header->root;
    for (unsigned depth = 0;; depth++) {
        if (*reference & 1) {
            /* Two leaves: nodes of one child as far as their bytes are the same. */
            uint64_t other = leaf_of(*reference)->key, top = new_node(OF_4);
            struct node *node = (struct node *)(file + top);
            for (; byte_of(other, depth) == byte_of(key, depth); depth++) {
                uint64_t below = new_node(OF_4);
                add(node, byte_of(key, depth), below);
                node = (struct node *)(file + below);
            }
            add(node, byte_of(other, depth), *reference);
            add(node, byte_of(key, depth), at);
            publish(reference, top);
            return;
        }
        if (*reference == 0) return publish(reference, at);
        struct node *node = (struct node *)(file + *reference);
        uint64_t *slot = slot_of(node, byte_of(key, depth));
        if (!slot) {
            if (node->kind != OF_256 && node->count == children_of[node->kind]) {
                publish(reference, grown(node));
                node = (struct node *)(file + *reference);
            }
            return add(node, byte_of(key, depth), at);
        }
        reference = slot;
    }
}

static void get(uint64_t key) {
    uint64_t reference = header->root;
    for (unsigned depth = 0; reference && !(reference & 1); depth++) {
        uint64_t *slot = slot_of((struct node *)(file + reference), byte_of(key, depth));
        reference = slot ? *slot : 0;
    }
    struct leaf *leaf = reference ? leaf_of(reference) : NULL;
    if (!leaf || leaf->key != key || leaf->value[VALUE_BYTES - 1] != (char)key)
        fprintf(stderr, "a record is not there\n"), exit(1);
}

int main(int argc, char **argv) {
    if (argc != 4) return 64;
    int inserts = !strcmp(argv[2], "insert"), descriptor = open(argv[1], O_RDWR | (inserts ? O_CREAT | O_EXCL : 0), 0644);
    uint64_t operations = strtoull(argv[3], NULL, 10), state = 1, half = 0;
    if (descriptor < 0) fail(argv[1]);
    /* Some file systems write zeros here, others at page faults. */
    long before = faults();
    uint64_t opened = now_ns();
    if (inserts && posix_fallocate(descriptor, 0, FILE_BYTES)) fail("posix_fallocate");
    file = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, descriptor, 0);
    if (file == MAP_FAILED) file = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (file == MAP_FAILED) fail("mmap");
    header = (struct header *)file;
    uint64_t began = now_ns(), records = header->records;
    mark();
    if (inserts) {
        uint64_t root = (header->used = LINE_BYTES, new_node(OF_256));
        write_back(file + root, children_at[OF_256] + 256 * sizeof(uint64_t));
        publish(&header->root, root);
    }
    for (uint64_t n = 0; n < operations; n++) {
        if (n == operations / 2) half = now_ns();
        if (inserts) insert(key_of(n));
        else get(key_of(next(&state) % records));
    }
    uint64_t ended = now_ns();
    mark();
    if (inserts) publish(&header->records, operations);
    printf("%s touches %llu, ns each %llu, of the second half %llu; page faults of all: %ld; ns to allocate and map %llu\n", argv[2],
           (unsigned long long)operations, (unsigned long long)((ended - opened) / operations), (unsigned long long)((ended - half) / (operations - operations / 2)), faults() - before,
           (unsigned long long)(began - opened));
    if (inserts && msync(file, FILE_BYTES, MS_SYNC)) fail("msync");
    return munmap(file, FILE_BYTES) || close(descriptor);
}
