"""Reading of one rank's records, and detection of damaged ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data.record_index import Damage, FileIndex

_RECORD = tf.TensorSpec([], tf.string)
# TensorFlow's own buffer size for local files; larger is no faster.
_BUFFER_BYTES = 256 * 1024
_CORRUPT = "is corrupt: its data does not match the checksum of it"


@dataclass(frozen=True)
class Piece:
    """Consecutive records of a file: `count` of them, from number `first`."""

    file: FileIndex
    first: int
    count: int

    @property
    def offset(self) -> int:
        """The byte offset of the first record."""
        return self.file.offsets[self.first]


def read(
    pieces: Sequence[Piece], *, at_a_time: int, seed: int | None
) -> tf.data.Dataset:
    """Read pieces of files, `at_a_time` in parallel, shuffled if there is a seed."""
    # A damaged record raises an error that names file and offset.
    where = tf.data.Dataset.from_tensor_slices(
        (
            [piece.file.path for piece in pieces],
            np.array([piece.offset for piece in pieces], np.int64),
            np.array([piece.count for piece in pieces], np.int64),
            np.arange(len(pieces), dtype=np.int64),
        )
    )
    if seed is not None:
        where = where.shuffle(len(pieces), seed=seed)

    def explain(number: Any) -> bytes:
        raise explained(pieces[int(number)])

    def read_one(path: Any, offset: Any, count: Any, number: Any) -> tf.data.Dataset:
        # Read only if records are missing, so it costs nothing otherwise.
        rest = tf.data.Dataset.from_tensors(number).map(
            lambda n: tf.ensure_shape(tf.numpy_function(explain, [n], tf.string), [])
        )
        return _open(path, offset).ignore_errors().concatenate(rest).take(count)

    records = where.interleave(
        read_one,
        cycle_length=at_a_time,
        num_parallel_calls=tf.data.AUTOTUNE if at_a_time > 1 else None,
    )
    total = sum(piece.count for piece in pieces)
    return records.apply(tf.data.experimental.assert_cardinality(total))


def explained(piece: Piece) -> Exception:
    """Return the error that explains why a piece has too few records."""
    for damage in damages(piece):
        return damage.error()
    # The damage has disappeared since.
    return OSError(
        "A TFRecord file must not change while it is read. Received: "
        f"{piece.file.path!r}, of which the records from byte offset {piece.offset} "
        "could be read only in part. See whether its disk or network has failed."
    )


def damages(piece: Piece) -> Iterator[Damage]:
    """Read a whole piece, and yield its corrupt records in order."""
    done = 0
    while done < piece.count:
        rest = replace(piece, first=piece.first + done, count=piece.count - done)
        # TensorFlow can open a file at an offset only inside a dataset function.
        where = tf.data.Dataset.from_tensors((piece.file.path, np.int64(rest.offset)))
        records = where.flat_map(lambda *place: _open(*place).ignore_errors())
        done += int(
            records.take(rest.count).reduce(np.int64(0), lambda total, _: total + 1)
        )
        if done < piece.count:
            number = piece.first + done
            yield Damage(piece.file.path, piece.file.offsets[number], number, _CORRUPT)
            done += 1


def without_damages(piece: Piece) -> tuple[list[Piece], list[Damage]]:
    """Read a whole piece; return the sound pieces within it, and the damages."""
    found = list(damages(piece))
    edges = [piece.first - 1, *(each.record for each in found)]
    ends = [*edges[1:], piece.first + piece.count]
    sound = [
        Piece(piece.file, before + 1, end - before - 1)
        for before, end in zip(edges, ends, strict=True)
        if end - before > 1
    ]
    return sound, found


def _open(path: Any, offset: Any) -> tf.data.Dataset:
    """Read a file from a byte offset, which `tf.data.TFRecordDataset` cannot."""
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type="",
        buffer_size=_BUFFER_BYTES,
        byte_offsets=[offset],
    )
    return tf.data.experimental.from_variant(variant, _RECORD)
