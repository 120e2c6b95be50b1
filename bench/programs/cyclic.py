"""Adds up a memory-mapped array that is larger than memory again and again."""

import numpy as np
from common import digest, make_pages, program

PASSES = 4
# Of the file: a pass is larger than memory, and not by much.
PART = 0.5
CHUNK = 1 << 17


def work(path):
    numbers = np.memmap(path, dtype=np.uint64, mode="r")
    length = int(len(numbers) * PART)
    checksum = digest()
    for _ in range(PASSES):
        for start in range(0, length, CHUNK):
            checksum.update(np.bitwise_xor.reduce(numbers[start : min(start + CHUNK, length)]).tobytes())
    return checksum.hexdigest()


program(f"numpy adds up the first half of the file {PASSES} times", work, make_pages)
