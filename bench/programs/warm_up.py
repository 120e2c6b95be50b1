"""Touches every page of a file that fits into memory, each once, in random order, from a cold start."""

import numpy as np
from common import PAGE, make_pages, program

BATCH_PAGES = 64


def work(path):
    pages = np.memmap(path, dtype=np.uint64, mode="r").reshape(-1, PAGE // 8)
    order = np.random.default_rng(1).permutation(len(pages))
    total = 0
    for start in range(0, len(order), BATCH_PAGES):
        total ^= int(np.bitwise_xor.reduce(pages[order[start : start + BATCH_PAGES], 0]))
    return f"{total:016x}"


program("numpy touches each page of a file that fits the cache, in random order", work, make_pages)
