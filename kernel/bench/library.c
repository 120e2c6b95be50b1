// SPDX-License-Identifier: GPL-2.0
/* The mapping of vmio, the library. In a file of its own, since its header is also called vmio.h. */
#include <err.h>

#include <vmio.h>

#include "library.h"

volatile unsigned char *map_by_library(const char *path, uint64_t capacity_bytes)
{
	struct vmio_cache_options options = { .size = sizeof(options), .capacity_bytes = capacity_bytes };
	struct vmio_mapping *mapping;
	struct vmio_cache *cache;
	char message[512];

	/* The default engine depends on the machine; the benchmark compares this one. */
	options.engine = VMIO_ENGINE_SIGBUS;
	if (vmio_cache_new(&options, &cache) == VMIO_OK && vmio_open(cache, path, NULL, &mapping) == VMIO_OK &&
	    vmio_advise(mapping, 0, vmio_len(mapping), VMIO_ADVICE_RANDOM, 0) == VMIO_OK)
		return vmio_pointer(mapping);
	vmio_last_error(message, sizeof(message));
	errx(1, "%s: %s", path, message);
}
