"""What a training leaves for `tfdist report`: the file of its run."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from tfdist import __version__
from tfdist.callbacks.peers import collective_of
from tfdist.compat.keras.saving import write_atomically
from tfdist.scaling import EpochRate, Run, text_of_run


def processes_of(model: keras.Model) -> int:
    """Return how many processes train a model; all of them have to ask.

    With parameter servers these are the workers. The strategies of TensorFlow know
    replicas, which are what they scale by.

    Args:
        model: The model.
    """
    strategy = model.distribute_strategy
    workers = getattr(strategy, "workers", None)
    if workers is not None:
        return int(workers)
    return max(collective_of(model).size, int(strategy.num_replicas_in_sync))


def counts_lag(model: keras.Model) -> bool:
    """Tell whether a step may begin before the counts have all that began earlier.

    So it is with parameter servers, whose workers are at several steps at a time.

    Args:
        model: The model.
    """
    return hasattr(model.distribute_strategy, "workers")


def write_run(
    path: str | os.PathLike[str],
    model: keras.Model,
    epochs: Sequence[EpochRate],
    *,
    processes: int,
    global_batch_size: int | None,
    units_per_example: Mapping[str, float],
) -> None:
    """Write the file of a run, whole or not at all.

    Args:
        path: The file.
        model: The model that was trained.
        epochs: The rate of each epoch.
        processes: How many processes trained it.
        global_batch_size: Examples of a step over all processes; None if not known.
        units_per_example: How many of a unit an example has, by its name.

    Raises:
        OSError: If it cannot be written.
    """
    run = Run(
        processes=processes,
        epochs=tuple(epochs),
        model=model.name,
        global_batch_size=global_batch_size,
        units_per_example=dict(units_per_example),
        versions={
            "tfdist": __version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
        },
    )
    text = text_of_run(run)
    write_atomically(Path(path), lambda beside: Path(beside).write_text(text))
