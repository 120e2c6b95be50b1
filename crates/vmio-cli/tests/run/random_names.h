// The declarations that random_names.c and random_paths.c share.
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SLOTS = 6, FILE_BYTES = 200000, CALL_BYTES = 20000, MAPPED_BYTES = 16384, PATH_BYTES = 6000 };

// The functions that the compiler calls in place of reads, to check buffers.
ssize_t __read_chk(int fd, void *buffer, size_t bytes, size_t room);
ssize_t __pread64_chk(int fd, void *buffer, size_t bytes, off_t offset, size_t room);

// Open descriptors; -1 for none.
extern int slots[SLOTS];
uint32_t random_below(uint32_t end);
int random_slot(void);
// Prints the result of a call, and its error.
void told(ssize_t result, const char *format, ...);

// random_paths.c
void random_path(char *path);
int random_folder(void);
mode_t random_mode(void);
void change_a_name(void);
void change_an_attribute(void);
void look(void);
void describe_tree(void);
