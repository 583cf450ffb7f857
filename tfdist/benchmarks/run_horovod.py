"""The benchmarks on Horovod: tfdist beside what Horovod's own users have."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from tfdist.benchmarks.figures_horovod import (
    horovod_allreduce_figures,
    horovod_training_figures,
)
from tfdist.benchmarks.limits import check_at_least, check_size
from tfdist.benchmarks.start import Group, start

_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
# While a process is stopped between its turns, it does not answer its peers.
_PATIENCE = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "3600"}
_KERAS_2 = {"TF_USE_LEGACY_KERAS": "1"}


def run_horovod_allreduce(
    size: int, sizes_bytes: Sequence[int], *, repeats: int
) -> list[dict[str, Any]]:
    """Measure Horovod's all-reduce through tfdist beside calls of `hvd.allreduce`.

    Where torch is installed, its all-reduce with Gloo takes turns with them.

    Args:
        size: How many processes, each on a core of its own; at least 2.
        sizes_bytes: Sizes of the tensors in bytes, multiples of 4.
        repeats: Timed calls for each size.

    Returns:
        The figures for each size; see `horovod_allreduce_figures`.

    Raises:
        BenchmarkError: If a process has failed.
        ImportError: If Horovod is not installed, or was built without Gloo.
        ValueError: If an argument is impossible here.
    """
    check_size(size)
    check_at_least(1, repeats=repeats)
    settings = {"sizes_bytes": [*sizes_bytes], "repeats": repeats}
    groups = [
        Group(
            *("Horovod", "allreduce_horovod", settings, size),
            collective="horovod",
            env=_PATIENCE,
        )
    ]
    if find_spec("torch") is not None:
        groups.append(Group("torch", "allreduce_torch", settings, size, env=_LOOPBACK))
    reports = start(groups)
    return [
        horovod_allreduce_figures(size_bytes, *of_size)
        for size_bytes, *of_size in zip(
            sizes_bytes, *(zip(*ranks, strict=True) for ranks in reports), strict=True
        )
    ]


def run_horovod_training(
    size: int, batch_size: int, *, steps: int, repeats: int, compression: str = "none"
) -> dict[str, Any]:
    """Measure the steps of training on Horovod, of one process and of several.

    Two groups of processes take turns, a block of steps at a time; where tf-keras is
    installed, four. With n processes and a batch size b:

    - "alone": one process under `AllReduceStrategy` on Horovod, batches of b;
    - "weak": n processes together, each with batches of b;
    - "their_alone" and "their_weak": the same with Horovod's own optimizer, in Keras 2.

    Args:
        size: How many processes, each on a core of its own; at least 2.
        batch_size: Examples of a step of one process.
        steps: Steps of a block; the first is not timed, so at least 2.
        repeats: How many blocks of each group are timed.
        compression: The type in which gradients travel: "none", or "fp16". Default
            "none".

    Returns:
        The figures; see `horovod_training_figures`.

    Raises:
        BenchmarkError: If a process has failed.
        ImportError: If Horovod is not installed, or was built without Gloo.
        ValueError: If an argument is impossible here.
    """
    check_size(size)
    check_at_least(1, batch_size=batch_size, repeats=repeats)
    check_at_least(2, steps=steps)
    if compression == "bf16":
        raise ValueError(
            "Horovod does not move bfloat16. Received: compression='bf16'. "
            "Use 'fp16', or collective='tensorflow'."
        )
    settings = {"steps": steps, "repeats": repeats, "compression": compression}

    def ours(name: str, size: int) -> Group:
        # Under the strategy the batch size is that of all processes together.
        own = {"collective": "horovod", "batch_size": batch_size * size}
        return _group(name, "training", settings | own, size, {})

    def theirs(name: str, size: int) -> Group:
        own = {"batch_size": batch_size}
        return _group(name, "training_tf_keras", settings | own, size, _KERAS_2)

    groups = [ours("alone", 1), ours("weak", size)]
    if find_spec("tf_keras") is not None:
        groups += [theirs("their_alone", 1), theirs("their_weak", size)]
    reports = start(groups)
    blocks = {group.name: ranks for group, ranks in zip(groups, reports, strict=True)}
    figures = horovod_training_figures(batch_size, size, blocks)
    return {"compression": compression, **figures}


def _group(
    name: str, program: str, settings: dict[str, Any], size: int, env: dict[str, str]
) -> Group:
    """Describe the processes of one Horovod job."""
    return Group(
        name, program, settings, size, collective="horovod", env=_PATIENCE | env
    )
