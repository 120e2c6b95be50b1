"""Adds up a memory-mapped array from its beginning to its end."""

import numpy as np
from common import make_pages, program

CHUNK = 1 << 17


def work(path):
    numbers = np.memmap(path, dtype=np.uint64, mode="r")
    total = 0
    for start in range(0, len(numbers), CHUNK):
        total ^= int(np.bitwise_xor.reduce(numbers[start : start + CHUNK]))
    return f"{total:016x}"


program("numpy adds up the file once, from its beginning to its end", work, make_pages)
