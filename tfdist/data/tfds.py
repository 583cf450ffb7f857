"""`tfdist.data.read_tfds`: a dataset of TensorFlow Datasets for the ranks of a job."""

import fcntl
import functools
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.data.pipeline import (
    Options,
    batches_of,
    check_examples,
    check_options,
    part_of,
)
from tfdist.data.sharding import rank_and_size


def read_tfds(
    name: Any,
    split: str,
    global_batch_size: int,
    *,
    parse: Callable[..., Any] | None = None,
    as_supervised: bool = True,
    shuffle_buffer: int = 0,
    seed: int = 0,
    cache: bool = False,
    deterministic: bool = False,
    data_dir: str | None = None,
    rank: int | None = None,
    size: int | None = None,
) -> tf.data.Dataset:
    """Read this rank's part of a dataset from TensorFlow Datasets.

    Each rank reads consecutive examples, its share of one process's batches. One
    process per data folder downloads and prepares a missing dataset, while the others
    wait.

    Args:
        name: The name, as in `tfds.load`, or a builder.
        split: The split, such as "train" or "train[:80%]".
        global_batch_size: Examples per step over all ranks.
        parse: A function of an example, called in graph mode; a pair is passed as two
            arguments. Default None: examples are unchanged.
        as_supervised: Whether an example is a pair such as (image, label). Default
            True.
        shuffle_buffer: Number of examples in the shuffle buffer; files are shuffled,
            too. 0 disables shuffling. Default 0.
        seed: The seed of the shuffles, which differ in each epoch. Default 0.
        cache: Whether to keep parsed examples in memory. Default False.
        deterministic: Whether examples come in the same order in every run. Default
            False.
        data_dir: The data folder. Default None: that of TensorFlow Datasets.
        rank: The rank to read for. Default None: this process.
        size: The number of ranks. Default None: all that train.

    Returns:
        A dataset of batches with known cardinality. Strategies do not shard it again.

    Raises:
        ImportError: If TensorFlow Datasets is not installed.
        ValueError: If an argument is invalid, or a rank would get no examples.

    Example:
        >>> import tfdist
        >>> def images(**options):
        ...     return tfdist.data.read_tfds("mnist", "train", 128, **options)
    """
    rank, size = rank_and_size(rank, size)
    options = Options(global_batch_size, shuffle_buffer, seed, cache, deterministic)
    check_options(options, size)
    tfds = _tensorflow_datasets()
    builder = tfds.builder(name, data_dir=data_dir) if isinstance(name, str) else name
    _prepare(builder)
    examples = builder.info.splits[split].num_examples
    check_examples(examples, size, f"the split {split!r} of {builder.name}")
    own = _part_of_split(
        builder, split, part_of(examples, global_batch_size, rank, size)
    )
    # Unshuffled files are read in order.
    config = tfds.ReadConfig(
        try_autocache=False,
        shuffle_seed=seed,
        interleave_cycle_length=16 if shuffle_buffer else 1,
    )
    records = builder.as_dataset(
        split=own,
        shuffle_files=shuffle_buffer > 0,
        read_config=config,
        as_supervised=as_supervised,
    )
    return batches_of(records, parse, options, rank, size)


def _prepare(builder: Any) -> None:
    """Prepare a dataset in one process at a time; concurrent preparation fails."""
    if builder.info.splits:
        return
    folder = Path(builder.data_dir)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            # Another process has prepared it; the builder must read that.
            builder.info.read_from_directory(folder)
        else:
            builder.download_and_prepare()


def _part_of_split(builder: Any, split: Any, part: range) -> Any:
    """Return the examples at some positions of a split, or of a sum of splits."""
    instruction = _tensorflow_datasets().core.ReadInstruction
    pieces = []
    begin = 0
    for one in instruction.from_spec(split).to_absolute(builder.info.splits):
        first = one.from_ or 0
        last = (
            builder.info.splits[one.splitname].num_examples
            if one.to is None
            else one.to
        )
        start, stop = max(part.start, begin), min(part.stop, begin + last - first)
        if start < stop:
            bounds = {"from_": first + start - begin, "to": first + stop - begin}
            pieces.append(instruction(one.splitname, **bounds, unit="abs"))
        begin += last - first
    return functools.reduce(operator.add, pieces)


def _tensorflow_datasets() -> Any:
    """Import TensorFlow Datasets."""
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError(
            "read_tfds needs TensorFlow Datasets. Received: an environment without it. "
            "Run: pip install tensorflow-datasets"
        ) from error
    return tensorflow_datasets
