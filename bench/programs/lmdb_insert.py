"""Inserts records in random order into an empty LMDB, through its mapping, until it is larger than memory."""

import shutil
from pathlib import Path

import lmdb
from common import digest, key, program, value

VALUE_BYTES = 1000
TRANSACTION_RECORDS = 1000
# A record in a tree that is filled in random order takes about this much of the file.
RECORD_BYTES = 1500


def make(path, size):
    """How many records there will be: the data itself is what is measured."""
    Path(path).write_text(str(size // RECORD_BYTES), encoding="ascii")


def work(path):
    records = int(Path(path).read_text(encoding="ascii"))
    folder = Path(path).with_suffix(".db")
    shutil.rmtree(folder, ignore_errors=True)
    room = (records * RECORD_BYTES * 2 + (64 << 20)) & ~4095
    store = lmdb.open(str(folder), map_size=room, writemap=True, sync=False, readahead=False)
    for first in range(0, records, TRANSACTION_RECORDS):
        with store.begin(write=True) as transaction:
            for number in range(first, min(first + TRANSACTION_RECORDS, records)):
                transaction.put(key(number), value(number, VALUE_BYTES))
    store.sync(True)
    # Every hundredth record shows that what was stored is there, past memory as well.
    checksum = digest()
    with store.begin() as transaction:
        checksum.update(str(transaction.stat()["entries"]).encode())
        for number in range(0, records, 100):
            checksum.update(transaction.get(key(number)))
    store.close()
    shutil.rmtree(folder)
    return checksum.hexdigest()


program(f"LMDB: inserts of {VALUE_BYTES} bytes in random order into an empty store, and a sync", work, make)
