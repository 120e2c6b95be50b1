// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A plugin of QEMU: counts the instructions that a guest runs between two marks, by address. At every second mark it adds a line "run"
 * to the file FILE of -plugin instructions.so,out=FILE, and after it a line "ADDRESS INSTRUCTIONS" for each block of code, in hex and
 * decimal. The mark is the instruction xchg %bx, %bx, which does nothing.
 *
 * Blocks end at jumps, so that a block belongs to one function. Of one that a fault leaves in the middle all is counted.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is used of version 4 of the interface (QEMU 10). */
typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;
struct counter {
    struct qemu_plugin_scoreboard *of_cores;
    size_t offset;
};
enum { CALLBACK_USES_NO_REGISTERS = 0, INLINE_ADD_U64 = 0 };
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, void (*call)(plugin_id, struct qemu_plugin_tb *));
struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t bytes_a_core);
void *qemu_plugin_scoreboard_find(struct qemu_plugin_scoreboard *of_cores, unsigned int core);
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *block, int operation, struct counter counter, uint64_t operand);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *instruction, void (*call)(unsigned int, void *), int flags, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *block);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *instruction, void *to, size_t bytes);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *instruction);

__attribute__((visibility("default"))) int qemu_plugin_version = 4;

static const unsigned char mark[] = {0x66, 0x87, 0xdb};

/* A translation of a block of code: there may be several of one. */
struct block {
    struct block *next;
    uint64_t address;
    struct counter instructions;
};

/* Of the one virtual core that a guest has whose clock counts: nobody else is at work. */
static struct block *blocks;
static FILE *out;
static int counts;

static void on_mark(unsigned int core, void *data) {
    (void)data;
    counts = !counts;
    if (!counts) fputs("run\n", out);
    for (struct block *block = blocks; block; block = block->next) {
        uint64_t *instructions = qemu_plugin_scoreboard_find(block->instructions.of_cores, core);
        if (!counts && *instructions) fprintf(out, "%" PRIx64 " %" PRIu64 "\n", block->address, *instructions);
        *instructions = 0;
    }
    fflush(out);
}

static void on_translation(plugin_id id, struct qemu_plugin_tb *translated) {
    struct block *block = malloc(sizeof *block);
    size_t count = qemu_plugin_tb_n_insns(translated);
    (void)id;
    if (!block) abort();
    *block = (struct block){.next = blocks, .address = qemu_plugin_tb_vaddr(translated)};
    block->instructions.of_cores = qemu_plugin_scoreboard_new(sizeof(uint64_t));
    blocks = block;
    qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(translated, INLINE_ADD_U64, block->instructions, count);
    for (size_t index = 0; index < count; index++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(translated, index);
        unsigned char code[sizeof mark];
        if (qemu_plugin_insn_size(instruction) != sizeof mark || qemu_plugin_insn_data(instruction, code, sizeof code) != sizeof code) continue;
        if (!memcmp(code, mark, sizeof mark))
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_mark, CALLBACK_USES_NO_REGISTERS, NULL);
    }
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    (void)info;
    for (int n = 0; n < argc; n++)
        if (!strncmp(argv[n], "out=", 4)) out = fopen(argv[n] + 4, "w");
    if (!out) {
        fprintf(stderr, "instructions: out=FILE is missing, or cannot be written\n");
        return -1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    return 0;
}
