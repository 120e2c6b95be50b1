"""Gathers random rows of a memory-mapped matrix, in batches, as a training loop does with samples."""

import numpy as np
from common import digest, make_pages, program, scaled

ROW_BYTES = 512
BATCHES = scaled(20)
BATCH_ROWS = 100


def work(path):
    rows = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, ROW_BYTES)
    random = np.random.default_rng(1)
    checksum = digest()
    for _ in range(BATCHES):
        checksum.update(rows[random.integers(0, len(rows), BATCH_ROWS)].tobytes())
    return checksum.hexdigest()


program(f"numpy gathers {BATCHES * BATCH_ROWS:,} random rows of {ROW_BYTES} bytes", work, make_pages)
