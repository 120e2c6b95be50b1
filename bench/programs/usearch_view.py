"""Searches an index of vectors that USearch has mapped instead of loaded."""

import numpy as np
from common import digest, program, scaled, sync
from usearch.index import Index

DIMENSIONS = 3072
NEIGHBOURS = 10
SEARCHES = scaled(4)
CONNECTIVITY = 4
EXPANSION_ADD = 16
EXPANSION_SEARCH = 64


def empty():
    return Index(
        ndim=DIMENSIONS,
        metric="l2sq",
        dtype="f32",
        connectivity=CONNECTIVITY,
        expansion_add=EXPANSION_ADD,
        expansion_search=EXPANSION_SEARCH,
    )


def make(path, size):
    index = empty()
    random = np.random.default_rng(1)
    left = size // (DIMENSIONS * 4)
    while left:
        count = min(left, 4096)
        first = len(index)
        index.add(np.arange(first, first + count), random.random((count, DIMENSIONS), dtype=np.float32))
        left -= count
    index.save(path)
    sync(path)


def work(path):
    index = empty()
    index.view(path)
    queries = np.random.default_rng(2).random((SEARCHES, DIMENSIONS), dtype=np.float32)
    checksum = digest()
    for query in queries:
        checksum.update(index.search(query, NEIGHBOURS, threads=1).keys.tobytes())
    return checksum.hexdigest()


program(f"USearch: {SEARCHES} searches of a viewed index of vectors of {DIMENSIONS * 4 >> 10} KiB", work, make)
