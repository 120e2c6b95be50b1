/* Asks for impossible sizes and alignments, and prints the results and errno. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void tell(const char *what, void *got, size_t alignment)
{
	int error = got ? 0 : errno;

	printf("%s: %s, errno %d, aligned %d\n", what, got ? "memory" : "none", error,
	       got ? (uintptr_t)got % alignment == 0 : -1);
	free(got);
	errno = 0;
}

int main(void)
{
	/* Hides from the compiler that these are too large. */
	volatile size_t most = SIZE_MAX, half = SIZE_MAX / 2 + 2;

	tell("malloc", malloc(most), 1);
	tell("calloc", calloc(half, 2), 1);
	tell("realloc", realloc(NULL, most), 1);
	tell("reallocarray", reallocarray(NULL, half, 2), 1);
	tell("memalign of too much", memalign(64, most - 4096), 1);
	tell("memalign of 0", memalign(0, 24), 1);
	tell("memalign of 3", memalign(3, 24), 4);
	tell("memalign of 100", memalign(100, 24), 128);
	tell("aligned_alloc of 64", aligned_alloc(64, 128), 64);
	tell("valloc", valloc(10), 4096);
	return 0;
}
