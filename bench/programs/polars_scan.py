"""Adds up the columns of an Arrow IPC file that Polars has mapped."""

import numpy as np
import polars as pl
from common import digest, program, sync

COLUMNS = 8
GROUP_ROWS = 1 << 16


def make(path, size):
    rows = size // (COLUMNS * 8)
    random = np.random.default_rng(1)
    frame = pl.DataFrame({f"c{number}": random.integers(0, 1 << 31, rows) for number in range(COLUMNS)})
    frame.write_ipc(path, compression="uncompressed", record_batch_size=GROUP_ROWS)
    sync(path)


def work(path):
    sums = pl.scan_ipc(path).select(pl.all().sum()).collect()
    checksum = digest()
    for column in sums.row(0):
        checksum.update(int(column).to_bytes(16, "little"))
    return checksum.hexdigest()


program(f"Polars adds up the {COLUMNS} columns of an Arrow IPC file, which scan_ipc maps", work, make)
