"""The pipeline from the examples of one rank to its batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.data.sharding import mark, share

_BATCHES_AHEAD = 2


class Options(NamedTuple):
    """Options of the pipeline; see `tfrecord_dataset`."""

    global_batch_size: int
    shuffle_buffer: int
    seed: int
    cache: bool
    deterministic: bool


def batches_of(
    records: tf.data.Dataset,
    parse: Callable[..., Any] | None,
    given: Options,
    rank: int,
    size: int,
) -> tf.data.Dataset:
    """Shuffle, parse, batch and prefetch one rank's records."""

    def shuffled(dataset: tf.data.Dataset) -> tf.data.Dataset:
        if not given.shuffle_buffer:
            return dataset
        return dataset.shuffle(given.shuffle_buffer, seed=given.seed)

    # Records are usually smaller than parsed examples.
    dataset = records if given.cache else shuffled(records)
    if parse is not None:
        dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    if given.cache:
        dataset = shuffled(dataset.cache())
    start, stop = share(given.global_batch_size, rank, size)
    dataset = dataset.batch(stop - start).prefetch(_BATCHES_AHEAD)
    options = tf.data.Options()
    options.deterministic = given.deterministic
    # One call per core is as fast here. Autotuning cannot be interrupted, and
    # delayed the end of each epoch.
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    return mark(dataset) if size > 1 else dataset


def check_options(given: Options, size: int) -> None:
    """Reject a negative buffer, and a global batch that leaves a rank without rows."""
    if given.shuffle_buffer < 0:
        raise ValueError(
            "shuffle_buffer must not be negative. Received: "
            f"shuffle_buffer={given.shuffle_buffer}. It is a number of examples; "
            "use 0 to leave them in order."
        )
    if given.global_batch_size < size:
        raise ValueError(
            "global_batch_size must be at least the number of ranks. Received: "
            f"global_batch_size={given.global_batch_size} for {size} ranks. It is what "
            "all ranks together take in a step: multiply what one takes by "
            "tfdist.size()."
        )


def check_examples(examples: int, size: int, source: str) -> None:
    """Reject data that leaves a rank without examples."""
    if examples < size:
        raise ValueError(
            "Every rank must get at least one example. Received: "
            f"{examples} examples for {size} ranks, from {source}. Start fewer "
            "processes, or see whether all files are there."
        )


def part_of(examples: int, global_batch_size: int, rank: int, size: int) -> range:
    """Return the consecutive positions of one rank's examples."""
    # A rank gets as many as it would get from global batches, so that all ranks run
    # equally many steps. Consecutive examples let it open only the files that it needs.
    batches, rest = divmod(examples, global_batch_size)
    whole = _shares(global_batch_size, size)
    last = _shares(rest, size)
    extra = rest - size * min(whole)
    if extra > 0:
        # An even share could exceed what a rank takes in a step.
        last = []
        for most in whole:
            more = min(most - min(whole), extra)
            extra -= more
            last.append(min(whole) + more)
    counts = [batches * full + short for full, short in zip(whole, last, strict=True)]
    start = sum(counts[:rank])
    return range(start, start + counts[rank])


def _shares(rows: int, size: int) -> list[int]:
    """Return the number of rows of each rank, divided evenly."""
    bounds = [share(rows, rank, size) for rank in range(size)]
    return [stop - start for start, stop in bounds]
