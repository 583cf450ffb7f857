"""TFRecord files: reading by the ranks of a job, and writing.

A record is an 8-byte length and its 4-byte checksum, the data and its 4-byte checksum.
"""

import contextlib
import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.data.pipeline import (
    Options,
    batches_of,
    check_examples,
    check_options,
    part_of,
)
from tfdist.data.sharding import rank_and_size

# Pieces per rank; shuffling them mixes records that lie next to each other.
_PIECES = 16
_AT_A_TIME = 8


def tfrecord_dataset(
    files: str | Sequence[str],
    parse: Callable[[Any], Any],
    global_batch_size: int,
    *,
    shuffle_buffer: int = 0,
    seed: int = 0,
    cache: bool = False,
    deterministic: bool = False,
    rank: int | None = None,
    size: int | None = None,
) -> tf.data.Dataset:
    """Read this rank's part of TFRecord files, in parallel and ahead of the steps.

    Exactly one rank reads each record, whatever the number of files, because records
    and not files are divided. Ranks get equally many, to within one per step, and run
    as many steps as one process would. Every rank first reads the lengths of all
    records to find its own.

    A strategy does not shard the result again. You may still `map` it, with a function
    of batches, or `take` some batches.

    Args:
        files: A pattern such as "data/train-*", or a list of files, which are sorted.
        parse: A function of a record (a scalar string tensor), called in graph mode,
            that returns the example.
        global_batch_size: Examples per step over all ranks.
        shuffle_buffer: Number of records in the shuffle buffer; pieces of files are
            shuffled, too. 0 disables shuffling. Default 0.
        seed: The seed of the shuffles, which differ in each epoch. Default 0.
        cache: Whether to keep this rank's parsed examples in memory, so that only the
            first epoch reads and parses. Apply random augmentation in a `map` of the
            result. Default False.
        deterministic: Whether examples come in the same order in every run. Otherwise a
            ready example may overtake a slow one, even without shuffling. Default
            False.
        rank: The rank to read for. Default None: this process.
        size: The number of ranks. Default None: all that train.

    Returns:
        A dataset of batches with known cardinality.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If an argument is invalid, a rank would get no records, or a file is
            truncated. Checksums are verified only during reading.

    Example:
        >>> import tempfile, tfdist
        >>> folder = tempfile.mkdtemp()
        >>> examples = [{"x": number} for number in range(10)]
        >>> files = tfdist.data.write_tfrecords(examples, f"{folder}/train", 3)
        >>> def parse(record):
        ...     features = {"x": tf.io.FixedLenFeature([], tf.int64)}
        ...     return tf.io.parse_single_example(record, features)["x"]
        >>> dataset = tfdist.data.tfrecord_dataset(files, parse, 4, rank=1, size=2)
        >>> sorted(int(x) for batch in dataset for x in batch)
        [2, 4, 5, 7, 8]
    """
    rank, size = rank_and_size(rank, size)
    options = Options(global_batch_size, shuffle_buffer, seed, cache, deterministic)
    check_options(options, size)
    indexes = index_files(_listed(files))
    examples = sum(len(index.offsets) for index in indexes)
    check_examples(examples, size, f"{len(indexes)} files: {files!r}")
    part = part_of(examples, global_batch_size, rank, size)
    most = -(-len(part) // _PIECES) if shuffle_buffer else len(part)
    records = read(
        pieces_of(part, indexes, most),
        at_a_time=_AT_A_TIME if shuffle_buffer else 1,
        seed=seed if shuffle_buffer else None,
    )
    return batches_of(records, parse, options, rank, size)


def _listed(files: str | Sequence[str]) -> list[str]:
    """Return the files, sorted, so that all ranks see them in the same order."""
    paths = tf.io.gfile.glob(files) if isinstance(files, str) else map(os.fspath, files)
    found = sorted(paths)
    if not found:
        raise FileNotFoundError(
            f"files must name at least one file. Received: files={files!r}, which "
            f"names none from {os.getcwd()!r}. See whether the pattern is right, and "
            "the folder there on this host."
        )
    return found


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


def write_tfrecords(
    examples: Iterable[Mapping[str, Any] | bytes],
    path: str | os.PathLike[str],
    num_shards: int = 1,
) -> list[str]:
    """Write examples to TFRecord files in rotation, one by one.

    Files appear under their final names only once all are complete. In a job, call this
    on the chief only.

    Args:
        examples: Each a mapping of features by name, or a serialized record. A feature
            is a number, a string, bytes, or an array of them, which is flattened.
            Integers and booleans become int64, other numbers float32. Encode images,
            for instance with `tf.io.encode_jpeg(image).numpy()`, to save space.
        path: The prefix of the file names, such as "data/train" for
            "data/train-00000-of-00004.tfrecord". Missing folders are created.
        num_shards: Number of files. Default 1.

    Returns:
        The file names.

    Raises:
        TypeError: If a record cannot hold a feature.
        ValueError: If `num_shards` is not positive.

    Example:
        >>> import tempfile, tfdist
        >>> examples = [{"x": [1.5, 2.5], "label": 1}, {"x": [0.0, 0.5], "label": 0}]
        >>> folder = tempfile.mkdtemp()
        >>> files = tfdist.data.write_tfrecords(examples, f"{folder}/train", 2)
        >>> [file.removeprefix(folder) for file in files]
        ['/train-00000-of-00002.tfrecord', '/train-00001-of-00002.tfrecord']
    """
    if num_shards < 1:
        raise ValueError(
            "num_shards must be positive. Received: "
            f"num_shards={num_shards}. It is the number of files: a few for each "
            "process that will read them."
        )
    begin = os.fspath(path)
    names = [
        f"{begin}-{number:05}-of-{num_shards:05}.tfrecord"
        for number in range(num_shards)
    ]
    tf.io.gfile.makedirs(os.path.dirname(begin) or ".")
    unfinished = [f"{name}.unfinished-{os.getpid()}" for name in names]
    try:
        with contextlib.ExitStack() as stack:
            writers = [
                stack.enter_context(tf.io.TFRecordWriter(name)) for name in unfinished
            ]
            for number, example in enumerate(examples):
                writers[number % num_shards].write(_serialized(example))
        for old, new in zip(unfinished, names, strict=True):
            tf.io.gfile.rename(old, new, overwrite=True)
    finally:
        for name in filter(tf.io.gfile.exists, unfinished):
            tf.io.gfile.remove(name)
    return names


def _serialized(example: Mapping[str, Any] | bytes) -> bytes:
    """Return the record of an example."""
    if isinstance(example, bytes):
        return example
    features = {name: _feature(name, value) for name, value in example.items()}
    proto = tf.train.Example(features=tf.train.Features(feature=features))
    return bytes(proto.SerializeToString())


def _feature(name: str, value: Any) -> Any:
    """Convert a value to the feature list of its type."""
    array = np.asarray(value)
    kind = array.dtype.kind
    if kind in "biu":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=array.ravel()))
    if kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=array.ravel()))
    # A NumPy array of bytes would strip trailing zeros.
    texts = np.asarray(value, object).ravel()
    if kind in "OSU" and all(isinstance(text, bytes | str) for text in texts):
        encoded = [text.encode() if isinstance(text, str) else text for text in texts]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))
    raise TypeError(
        "A feature must be a number, a string, bytes, or an array of them. Received: "
        f"{name!r}, a {type(value).__name__} of {kind!r}. Serialize it first, for "
        "instance with tf.io.serialize_tensor(value).numpy()."
    )
