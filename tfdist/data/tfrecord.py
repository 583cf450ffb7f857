"""`tfdist.data.tfrecord_dataset`: TFRecord files for the ranks of a job."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf
from absl import logging

from tfdist.data.feeding import Feeding
from tfdist.data.partition import check_batch, check_examples, part_of, pieces_of
from tfdist.data.record_index import Damage, FileIndex, index_files
from tfdist.data.records import Piece, read, without_damages
from tfdist.data.sharding import rank_and_size, share

# Pieces per rank; shuffling them mixes records that lie next to each other.
_PIECES = 16
_AT_A_TIME = 8

_Tell = Callable[[str], object]


def tfrecord_dataset(
    files: str | Sequence[str],
    parse: Callable[[Any], Any],
    global_batch_size: int,
    *,
    shuffle_buffer: int = 0,
    seed: int = 0,
    cache: bool = False,
    deterministic: bool = False,
    on_corrupt: str | _Tell = "raise",
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
        on_corrupt: "raise" an error that names file and byte offset of a truncated or
            corrupt record; "skip" such records, and log each and their number; or a
            function, called with each log message, to skip them. To skip, this rank's
            part is read once in advance. Default "raise".
        rank: The rank to read for. Default None: this process.
        size: The number of ranks. Default None: all that train.

    Returns:
        A dataset of batches with known cardinality.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If an argument is invalid, a rank would get no records, or a file is
            truncated or corrupt. Data checksums are verified only during reading.

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
    feeding = Feeding(shuffle_buffer, seed, cache, deterministic)
    tell = _teller(on_corrupt)
    rank, size = rank_and_size(rank, size)
    check_batch(global_batch_size, size)
    indexes = index_files(_listed(files))
    damages = [index.damage for index in indexes if index.damage is not None]
    if damages and tell is None:
        raise damages[0].error()
    check_examples(sum(map(len, indexes)), size, f"{len(indexes)} files: {files!r}")
    part = part_of(sum(map(len, indexes)), global_batch_size, rank, size)
    most = -(-len(part) // _PIECES) if shuffle_buffer else len(part)
    pieces = _pieces(part, indexes, most)
    if tell is not None:
        # One rank alone reports damage that ends a file.
        pieces = _sound(pieces, damages if rank == 0 else [], tell)
        check_examples(sum(piece.count for piece in pieces), 1, f"rank {rank}'s part")
    at_a_time = _AT_A_TIME if shuffle_buffer else 1
    records = read(pieces, at_a_time=at_a_time, seed=feeding.piece_seed)
    start, stop = share(global_batch_size, rank, size)
    return feeding.batches(records, parse, stop - start, is_part=size > 1)


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


def _pieces(part: range, indexes: Sequence[FileIndex], most: int) -> list[Piece]:
    """Return the location of a part's records, in pieces of at most `most`."""
    lengths = [*map(len, indexes)]
    return [
        Piece(indexes[number], first, count)
        for number, first, count in pieces_of(part, lengths, most)
    ]


def _teller(on_corrupt: str | _Tell) -> _Tell | None:
    """Return the function to call with each damage; None to raise an error."""
    if callable(on_corrupt):
        return on_corrupt
    if on_corrupt not in ("raise", "skip"):
        raise ValueError(
            'on_corrupt must be "raise", "skip", or a function. Received: '
            f"on_corrupt={on_corrupt!r}. Use the function to count: "
            "found = [], on_corrupt=found.append."
        )
    return _ignore if on_corrupt == "skip" else None


def _ignore(_: str) -> None:
    """Do nothing; the log has it."""


def _sound(
    pieces: Sequence[Piece], damages: Sequence[Damage], tell: _Tell
) -> list[Piece]:
    """Remove corrupt records, and report them."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        cut = [*pool.map(without_damages, pieces)]
    told = [*damages, *(damage for _, found in cut for damage in found)]
    for damage in told:
        logging.warning("skipped: %s", damage)
        tell(str(damage))
    if told:
        logging.warning("skipped %d damaged places of TFRecord files", len(told))
    return [piece for sound, _ in cut for piece in sound]
