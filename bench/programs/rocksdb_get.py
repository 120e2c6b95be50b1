"""Gets random records of a RocksDB whose tables are mapped (allow_mmap_reads)."""

import random

from common import digest, key, program, scaled, value
from rocksdict import AccessType, DBCompressionType, Options, Rdict, WriteOptions

VALUE_BYTES = 1000
GETS = scaled(10_000)
TABLE_BYTES = 64 << 20


def options():
    chosen = Options(raw_mode=True)
    chosen.create_if_missing(True)
    chosen.set_allow_mmap_reads(True)
    chosen.set_compression_type(DBCompressionType.none())
    chosen.set_target_file_size_base(TABLE_BYTES)
    return chosen


def make(path, size):
    store = Rdict(path, options())
    store.put(b"records", str(size // (VALUE_BYTES + 32)).encode())
    unlogged = WriteOptions()
    unlogged.disable_wal = True
    for number, of_record in enumerate(sorted(map(key, range(size // (VALUE_BYTES + 32))))):
        store.put(of_record, value(number, VALUE_BYTES), unlogged)
    store.flush()
    store.compact_range(None, None)
    store.close()


def work(path):
    store = Rdict(path, options(), access_type=AccessType.read_only())
    records = int(store[b"records"])
    numbers = random.Random(2)
    checksum = digest()
    for _ in range(GETS):
        checksum.update(store[key(numbers.randrange(records))])
    store.close()
    return checksum.hexdigest()


program(f"RocksDB with allow_mmap_reads: {GETS:,} gets of random records of {VALUE_BYTES} bytes", work, make)
