"""Gets random records of an LMDB that is larger than memory."""

import random
from pathlib import Path

import lmdb
from common import digest, key, program, scaled, value

VALUE_BYTES = 1000
RECORD_BYTES = 1366
GETS = scaled(10_000)


def make(path, size):
    records = size // RECORD_BYTES
    store = lmdb.open(path, map_size=size * 2, sync=False)
    with store.begin(write=True) as transaction:
        for number, of_record in enumerate(sorted(map(key, range(records)))):
            transaction.put(of_record, value(number, VALUE_BYTES), append=True)
    store.sync(True)
    store.close()


def work(path):
    size = (Path(path) / "data.mdb").stat().st_size
    store = lmdb.open(path, readonly=True, lock=False, readahead=False, map_size=size)
    numbers = random.Random(2)
    checksum = digest()
    with store.begin(buffers=True) as transaction:
        records = transaction.stat()["entries"]
        for _ in range(GETS):
            checksum.update(transaction.get(key(numbers.randrange(records))))
    store.close()
    return checksum.hexdigest()


program(f"LMDB: {GETS:,} gets of random records of {VALUE_BYTES} bytes", work, make)
