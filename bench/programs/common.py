"""What the programs of this folder share: how they are called, timed, and what they print.

PROGRAM make PATH MIB makes about that much data at PATH. PROGRAM run PATH SCALE does the work over it, SCALE times as much of it as
the parameters say where it consists of many accesses, and prints a line of JSON: what it did, the seconds that this took from before the file is mapped until the program is done with it, and a checksum of what it
computed.
"""

import hashlib
import json
import os
import random
import sys
import time

PAGE = 4096


def program(what, work, make):
    action, path, *rest = sys.argv[1:]
    if action == "make":
        make(path, int(rest[0]) << 20)
        return
    start = time.perf_counter()
    checksum = work(path)
    seconds = time.perf_counter() - start
    print(json.dumps({"what": what, "seconds": round(seconds, 6), "checksum": str(checksum)}))


def scaled(count):
    """So many accesses, for a device on which the work is to take longer or shorter."""
    return max(1, round(count * float(sys.argv[3]))) if sys.argv[1] == "run" else count


def digest():
    """A checksum of bytes, in their order."""
    return hashlib.blake2b(digest_size=8)


def value(number, length):
    """Bytes that follow from a number; the second half compresses, as half of much data does."""
    half = length // 2
    return random.Random(number).randbytes(half) + bytes(length - half)


def key(number):
    """A key of 16 bytes; those of neighbouring numbers are far apart."""
    return hashlib.blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def sync(path):
    """Makes what was made durable, so that no write-back of it falls into a measured run."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def make_pages(path, size):
    """A file of random pages, each of which compresses to a half."""
    with open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(b"".join(os.urandom(PAGE // 2) + bytes(PAGE // 2) for _ in range(256)))
        os.fsync(file.fileno())
