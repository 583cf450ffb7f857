"""The records of TFRecord files: their byte offsets, and reading of some of them.

A record is an 8-byte length and its 4-byte checksum, the data and its 4-byte checksum.
"""

import os
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

_LENGTH_BYTES = 8
# The bytes of a record in addition to its data.
_FRAME_BYTES = 16
# More than cores, because they mostly wait for a disk or a network.
_THREADS = 16
# TensorFlow's own buffer size for local files; larger is no faster.
_BUFFER_BYTES = 256 * 1024


class RecordFile(NamedTuple):
    """A file, and the byte offsets of its records."""

    path: str
    offsets: Sequence[int]


class Piece(NamedTuple):
    """Consecutive records of a file: `records` of them, from a byte offset."""

    path: str
    offset: int
    records: int


def index_files(paths: Sequence[str]) -> list[RecordFile]:
    """Find the records of uncompressed files, which may be remote, as "gs://..."."""
    with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
        return list(pool.map(_index, paths))


def _index(path: str) -> RecordFile:
    """Follow the lengths from record to record to the end of a file."""
    file: Any
    if "://" in path:
        file = tf.io.gfile.GFile(path, "rb")
        size = file.size()
    else:
        file = open(path, "rb", buffering=0)  # noqa: SIM115
        size = os.fstat(file.fileno()).st_size
        # Otherwise read-ahead would read the data between the lengths, too.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
    offsets = array("Q")
    offset = 0
    with file:
        while offset < size:
            offsets.append(offset)
            file.seek(offset)
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            offset += _FRAME_BYTES + length
    if offset != size:
        raise ValueError(
            "A TFRecord file must hold whole, uncompressed records. Received: "
            f"{path!r}, whose record {len(offsets) - 1} at byte offset {offsets[-1]} "
            "is truncated or corrupt. Write or copy the file again."
        )
    return RecordFile(path, offsets)


def pieces_of(part: range, files: Sequence[RecordFile], most: int) -> list[Piece]:
    """Return the pieces of a part of all records, none longer than `most`."""
    pieces = []
    begin = 0
    for file in files:
        length = len(file.offsets)
        start = max(part.start, begin) - begin
        stop = min(part.stop, begin + length) - begin
        pieces += [
            Piece(file.path, file.offsets[first], min(most, stop - first))
            for first in range(start, stop, most)
        ]
        begin += length
    return pieces


def read(
    pieces: Sequence[Piece], *, at_a_time: int, seed: int | None
) -> tf.data.Dataset:
    """Read pieces of files, `at_a_time` in parallel, shuffled if there is a seed."""
    paths, offsets, counts = zip(*pieces, strict=True)
    where = tf.data.Dataset.from_tensor_slices(
        ([*paths], np.array(offsets, np.int64), np.array(counts, np.int64))
    )
    if seed is not None:
        where = where.shuffle(len(pieces), seed=seed)

    def read_one(path: Any, offset: Any, count: Any) -> tf.data.Dataset:
        # TensorFlow's error for corrupt data names the byte offset only: it is logged,
        # and ends the piece early. `lost` is read only then.
        found = _open(path, offset).ignore_errors(log_warning=True)
        lost = tf.data.Dataset.from_tensors(path).map(_raise_lost)
        return found.concatenate(lost).take(count)

    records = where.interleave(
        read_one,
        cycle_length=at_a_time,
        num_parallel_calls=tf.data.AUTOTUNE if at_a_time > 1 else None,
    )
    return records.apply(tf.data.experimental.assert_cardinality(sum(counts)))


def _open(path: Any, offset: Any) -> tf.data.Dataset:
    """Read a file from a byte offset, which `tf.data.TFRecordDataset` cannot."""
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type="",
        buffer_size=_BUFFER_BYTES,
        byte_offsets=[offset],
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def _raise_lost(path: Any) -> Any:
    """Raise the error for a file with a damaged record."""
    what = "A TFRecord file must hold whole records with their checksums. Received:"
    failed = tf.debugging.Assert(False, [what, path, "Write or copy the file again."])
    with tf.control_dependencies([failed]):
        return tf.identity(path)
