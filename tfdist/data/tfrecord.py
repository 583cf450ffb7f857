"""`tfdist.data.tfrecord_dataset`: TFRecord files for the ranks of a job."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.data.pipeline import (
    Options,
    batches_of,
    check_examples,
    check_options,
    part_of,
)
from tfdist.data.records import index_files, pieces_of, read
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
