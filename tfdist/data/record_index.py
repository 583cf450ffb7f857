"""Byte offsets of the records of TFRecord files, and damaged files.

A record is an 8-byte length and its 4-byte checksum, the data and its 4-byte checksum.
"""

import os
import struct
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tfdist.data.crc32c import masked_crc32c

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4
_GZIP = b"\x1f\x8b"
# More than cores, because they mostly wait for a disk or a network.
_THREADS = 16

_ReadAt = Callable[[int, int], bytes]


@dataclass(frozen=True)
class Damage:
    """The damaged record at a byte offset of a file, and the problem."""

    path: str
    offset: int
    record: int
    what: str

    def __str__(self) -> str:
        return (
            f"{self.path!r}, whose record {self.record} at byte offset {self.offset} "
            f"{self.what}"
        )

    def error(self) -> ValueError:
        """Return the error for this damage."""
        return ValueError(
            "A TFRecord file must hold whole records with their checksums. "
            f"Received: {self}. Write or copy the file again, or pass "
            'on_corrupt="skip" to go on without such records.'
        )


@dataclass(frozen=True)
class FileIndex:
    """Byte offsets of a file's records, and the damage that ends it early, if any."""

    path: str
    offsets: Sequence[int]
    damage: Damage | None

    def __len__(self) -> int:
        return len(self.offsets)


def index_files(paths: Sequence[str]) -> list[FileIndex]:
    """Index uncompressed files in parallel; they may be remote, as "gs://..."."""
    with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
        return list(pool.map(index_file, paths))


def index_file(path: str) -> FileIndex:
    """Index the records of one file."""
    if "://" in path:
        with tf.io.gfile.GFile(path, "rb") as file:

            def read_at(offset: int, count: int) -> bytes:
                file.seek(offset)
                data: bytes = file.read(count)
                return data

            return _index(path, file.size(), read_at)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Otherwise read-ahead would read the data between the lengths, too.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return _index(
            path,
            os.fstat(descriptor).st_size,
            lambda offset, count: os.pread(descriptor, count, offset),
        )
    finally:
        os.close(descriptor)


def _index(path: str, size: int, read_at: _ReadAt) -> FileIndex:
    """Follow the lengths from record to record, then verify their checksums at once."""
    offsets = array("Q")
    headers = bytearray()
    offset = 0
    while offset + _HEADER.size <= size:
        header = read_at(offset, _HEADER.size)
        offsets.append(offset)
        headers += header
        offset += _HEADER.size + _HEADER.unpack(header)[0] + _FOOTER_BYTES
    bad = _first_bad_length(headers)
    if bad is not None:
        what = "is corrupt: its length does not match the checksum of it"
        if headers[:2] == _GZIP:
            what = "is none: the file is compressed with gzip, and must not be"
        return FileIndex(path, offsets[:bad], Damage(path, offsets[bad], bad, what))
    if offset == size:
        return FileIndex(path, offsets, None)
    if offset > size:
        begin, needed = offsets.pop(), offset
    else:
        begin, needed = offset, offset + _HEADER.size
    what = f"is truncated: the file ends after {size} bytes, not {needed} or more"
    return FileIndex(path, offsets, Damage(path, begin, len(offsets), what))


def _first_bad_length(headers: bytearray) -> int | None:
    """Return the number of the first record whose length is corrupt."""
    rows = np.frombuffer(headers, np.uint8).reshape(-1, _HEADER.size)
    stored = np.ascontiguousarray(rows[:, 8:]).view("<u4")[:, 0]
    wrong = np.flatnonzero(stored != masked_crc32c(rows[:, :8]))
    return int(wrong[0]) if len(wrong) else None
