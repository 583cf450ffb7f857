"""`tfdist.data.read_tfds`: a dataset of TensorFlow Datasets for the ranks of a job."""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.data.feeding import Feeding
from tfdist.data.partition import check_batch, check_examples
from tfdist.data.sharding import rank_and_size, share


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
    """Read this rank's part of a dataset of TensorFlow Datasets.

    TensorFlow Datasets cuts the split into even parts, by examples (`even_splits`), and
    reads one of them with a `ReadConfig`. A dataset that is not prepared yet is
    downloaded and prepared by one process of each folder, while the others wait.

    Args:
        name: As in `tfds.load`, or a builder.
        split: As "train" or "train[:80%]".
        global_batch_size: Examples of a step of all ranks together.
        parse: Called in graph mode with each example; what `as_supervised` makes of it
            is spread over the arguments. Default None: examples are left as they are.
        as_supervised: Whether an example is a pair, as (image, label). Default True.
        shuffle_buffer: Among how many examples the next is drawn; the files are read in
            another order, too. 0 leaves all in order. Default 0.
        seed: What is drawn from it is another order in each epoch. Default 0.
        cache: Whether the parsed examples are kept in memory. Default False.
        deterministic: Whether examples come in the same order in every run. Default
            False.
        data_dir: Where the data is. Default None: where TensorFlow Datasets keeps it.
        rank: Whose part. Default None: that of this process.
        size: How many ranks there are. Default None: as many as train.

    Returns:
        A dataset of batches, which a strategy takes as it is; its cardinality is known.

    Raises:
        ImportError: If TensorFlow Datasets is not installed.
        ValueError: If an argument is impossible, or a rank would get nothing.

    Example:
        >>> import tfdist
        >>> def images(**options):
        ...     return tfdist.data.read_tfds("mnist", "train", 128, **options)
    """
    feeding = Feeding(shuffle_buffer, seed, cache, deterministic)
    rank, size = rank_and_size(rank, size)
    check_batch(global_batch_size, size)
    tfds = _tensorflow_datasets()
    builder = tfds.builder(name, data_dir=data_dir) if isinstance(name, str) else name
    _prepare(builder)
    examples = builder.info.splits[split].num_examples
    check_examples(examples, size, f"the split {split!r} of {builder.name}")
    own = tfds.even_splits(split, size, drop_remainder=False)[rank]
    config = tfds.ReadConfig(
        try_autocache=False,
        shuffle_seed=seed,
        # Of a part that is not shuffled the files are read in order.
        interleave_cycle_length=16 if shuffle_buffer else 1,
    )
    records = builder.as_dataset(
        split=own,
        shuffle_files=shuffle_buffer > 0,
        read_config=config,
        as_supervised=as_supervised,
    )
    start, stop = share(global_batch_size, rank, size)
    return feeding.batches(records, parse, stop - start, is_part=size > 1)


def _prepare(builder: Any) -> None:
    """Prepare a dataset once on each machine.

    TensorFlow Datasets fails when two processes prepare the same data at once.
    """
    if builder.info.splits:
        return
    folder = Path(builder.data_dir)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            # Another process was faster, which the builder does not see by itself.
            builder.info.read_from_directory(folder)
        else:
            builder.download_and_prepare()


def _tensorflow_datasets() -> Any:
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError(
            "read_tfds needs TensorFlow Datasets. Received: an environment without it. "
            "Run: pip install tensorflow-datasets"
        ) from error
    return tensorflow_datasets
