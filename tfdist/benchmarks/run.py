"""The benchmarks: what is compared with what."""

from collections.abc import Sequence
from typing import Any

from tfdist.benchmarks.figures import (
    allreduce_figures,
    memory_figures,
    training_figures,
)
from tfdist.benchmarks.figures_backup import NO_BACKUP, backup_figures
from tfdist.benchmarks.limits import check_at_least, check_size
from tfdist.benchmarks.start import Group, start

_LAYER_BYTES = 4 * 2**20
# Of a step of one process, as in the example of the digits.
_DIGITS_OF_STEP = 32
# Whose BackupAndRestore there is, and its save_freq.
_BACKUPS = {
    NO_BACKUP: (None, "epoch"),
    "tfdist": ("tfdist", "epoch"),
    "steps": ("tfdist", 10),
    "keras": ("keras", "epoch"),
}


def run_allreduce(
    size: int, sizes_bytes: Sequence[int], *, repeats: int
) -> list[dict[str, Any]]:
    """Measure the all-reduce beside TensorFlow's own ring on the whole tensor.

    Args:
        size: How many processes, each on a core of its own; at least 2.
        sizes_bytes: Sizes of the tensors in bytes, multiples of 4.
        repeats: Timed calls for each size.

    Returns:
        The figures for each size; see `allreduce_figures`.

    Raises:
        BenchmarkError: If a process has failed.
        ValueError: If an argument is impossible here.
    """
    check_size(size)
    check_at_least(1, repeats=repeats)
    settings = {"sizes_bytes": [*sizes_bytes], "repeats": repeats}
    [ranks] = start([Group("all-reduce", "allreduce", settings, size)])
    return [
        allreduce_figures(size_bytes, by_rank)
        for size_bytes, by_rank in zip(
            sizes_bytes, zip(*ranks, strict=True), strict=True
        )
    ]


def run_training(
    size: int, batch_size: int, *, steps: int, repeats: int, compression: str = "none"
) -> dict[str, Any]:
    """Measure the steps of training, of one process and of several.

    Five groups of processes take turns, a block of steps at a time. With n processes
    and a batch size b:

    - "plain": one process, plain Keras, batches of b;
    - "alone": one process under `AllReduceStrategy`, batches of b;
    - "apart": n such processes at once that know nothing of each other, so that all
      cores are as busy as with a collective, but nobody communicates;
    - "weak": n processes together, each with batches of b;
    - "strong": n processes together that share batches of b.

    The waiting share compares "weak" with "apart": it is the part of a step that the
    collective takes, its own work and the wait for the peers, without what busy
    neighbours cost in any case.

    Args:
        size: How many processes, each on a core of its own; at least 2.
        batch_size: Examples of a step of one process.
        steps: Steps of a block; the first is not timed, so at least 2.
        repeats: How many blocks of each group are timed.
        compression: The type in which gradients travel; see `AllReduceStrategy`.
            Default "none".

    Returns:
        The figures; see `training_figures`.

    Raises:
        BenchmarkError: If a process has failed.
        ValueError: If an argument is impossible here.
    """
    check_size(size)
    check_at_least(1, batch_size=batch_size, repeats=repeats)
    check_at_least(2, steps=steps)

    def group(
        name: str, batch_size: int, size: int = 1, *, joined: bool = True
    ) -> Group:
        settings = {
            "collective": None if name == "plain" else "tensorflow",
            "batch_size": batch_size,
            "steps": steps,
            "repeats": repeats,
            "compression": compression,
        }
        return Group(name, "training", settings, size, joined)

    groups = [
        group("plain", batch_size),
        group("alone", batch_size),
        group("apart", batch_size, size, joined=False),
        group("weak", batch_size * size, size),
        group("strong", batch_size, size),
    ]
    reports = start(groups)
    blocks = {group.name: ranks for group, ranks in zip(groups, reports, strict=True)}
    figures = training_figures(batch_size, size, blocks)
    return {"compression": compression, **figures}


def run_memory(size: int, layers: Sequence[int] = (16, 64)) -> dict[str, Any]:
    """Measure what the strategy adds to the peak memory of a process.

    Two models are measured, so that what grows with the gradients is told from what
    any TensorFlow server takes.

    Args:
        size: How many processes, each on a core of its own; at least 2.
        layers: Layers of the smaller and of the larger model, 4 MiB of gradients each.
            Default (4, 16).

    Returns:
        The figures; see `memory_figures`. Of several processes the largest counts.

    Raises:
        BenchmarkError: If a process has failed.
        ValueError: If an argument is impossible here.
    """
    check_size(size)
    peaks = []
    for count in layers:
        groups = [
            Group(
                name,
                "memory",
                {"distributed": processes > 1, "processes": processes, "layers": count},
                processes,
            )
            for name, processes in (("plain", 1), ("distributed", size))
        ]
        [plain], distributed = start(groups)
        peaks.append((plain, max(distributed)))
    return memory_figures([count * _LAYER_BYTES for count in layers], peaks)


def run_backup(size: int, *, epochs: int, repeats: int) -> dict[str, Any]:
    """Measure what saving the state of a training costs an epoch.

    Four groups of processes under `AllReduceStrategy` take turns, some epochs at a
    time. They train a model and have as many images as the example of the digits:

    - "none": nothing is saved;
    - "tfdist": tfdist's `BackupAndRestore`, at the end of each epoch;
    - "steps": the same every 10 steps;
    - "keras": Keras's `BackupAndRestore`, which keeps less, at the end of each epoch.

    Args:
        size: How many processes, each on a core of its own; at least 2.
        epochs: Epochs of a turn; the first is not timed, so at least 2.
        repeats: How many turns of each group are timed.

    Returns:
        The figures; see `backup_figures`.

    Raises:
        BenchmarkError: If a process has failed.
        ValueError: If an argument is impossible here.
    """
    check_size(size)
    check_at_least(2, epochs=epochs)
    check_at_least(1, repeats=repeats)
    groups = [
        Group(
            name,
            "backup",
            {
                "backup": backup,
                "save_freq": save_freq,
                "batch_size": _DIGITS_OF_STEP * size,
                "epochs": epochs,
                "repeats": repeats,
            },
            size,
        )
        for name, (backup, save_freq) in _BACKUPS.items()
    ]
    reports = zip(groups, start(groups), strict=True)
    return backup_figures({group.name: ranks for group, ranks in reports})
