"""Searches an index of vectors that Annoy has mapped, as it always does."""

import numpy as np
from annoy import AnnoyIndex
from common import digest, program, scaled, sync

DIMENSIONS = 512
TREES = 4
NEIGHBOURS = 10
SEARCHES = scaled(5)
INSPECTED = 1000


def make(path, size):
    index = AnnoyIndex(DIMENSIONS, "euclidean")
    index.set_seed(1)
    random = np.random.default_rng(1)
    for item in range(size // (DIMENSIONS * 4)):
        index.add_item(item, random.random(DIMENSIONS, dtype=np.float32).tolist())
    index.build(TREES)
    index.save(path)
    sync(path)


def work(path):
    index = AnnoyIndex(DIMENSIONS, "euclidean")
    index.load(path)
    queries = np.random.default_rng(2).random((SEARCHES, DIMENSIONS), dtype=np.float32)
    checksum = digest()
    for query in queries:
        checksum.update(np.array(index.get_nns_by_vector(query.tolist(), NEIGHBOURS, INSPECTED)).tobytes())
    index.unload()
    return checksum.hexdigest()


program(f"Annoy: {SEARCHES} searches of an index of vectors of {DIMENSIONS * 4 >> 10} KiB", work, make)
