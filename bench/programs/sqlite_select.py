"""Selects random rows of an SQLite database that it reads through a mapping."""

import random
import sqlite3

from common import digest, program, scaled, sync, value

ROW_BYTES = 1000
SELECTS = scaled(2000)
# SQLite's own pages, beside which the mapping is used.
CACHE_KIB = 4096
MAP_BYTES = 0x7FFF0000


def make(path, size):
    store = sqlite3.connect(path, isolation_level=None)
    store.execute("PRAGMA journal_mode = OFF")
    store.execute("PRAGMA synchronous = OFF")
    store.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, content BLOB)")
    store.execute("BEGIN")
    rows = ((number, value(number, ROW_BYTES)) for number in range(size // (ROW_BYTES + 24)))
    store.executemany("INSERT INTO records VALUES (?, ?)", rows)
    store.execute("COMMIT")
    store.close()
    sync(path)


def work(path):
    store = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    store.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    if not store.execute(f"PRAGMA mmap_size = {MAP_BYTES}").fetchone()[0]:
        raise SystemExit("this SQLite is built without mappings")
    count = store.execute("SELECT max(id) FROM records").fetchone()[0]
    numbers = random.Random(2)
    checksum = digest()
    for _ in range(SELECTS):
        row = store.execute("SELECT content FROM records WHERE id = ?", (numbers.randrange(count),))
        checksum.update(row.fetchone()[0])
    store.close()
    return checksum.hexdigest()


program(f"SQLite with mmap_size: {SELECTS:,} selects of random rows of {ROW_BYTES} bytes", work, make)
