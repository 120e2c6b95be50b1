/* SPDX-License-Identifier: GPL-2.0 */
#ifndef LIBRARY_H
#define LIBRARY_H

#include <stdint.h>

/* A device mapped by the library's userfaultfd engine, through a cache of this capacity, for random accesses. */
volatile unsigned char *map_by_library(const char *path, uint64_t capacity_bytes);

#endif
