"""The benchmark of training: steps of one process and of several."""

from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.benchmarks.figures import Blocks, medians, seconds_by_round, spread
from tfdist.benchmarks.processes import Group, check_at_least, start
from tfdist.scaling import (
    strong_scaling_efficiency,
    waiting_share,
    weak_scaling_efficiency,
)

# A process that is stopped between turns does not answer its peers.
HOROVOD_ENV = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "3600"}


def run_training(
    size: int,
    batch_size: int,
    *,
    steps: int,
    repeats: int,
    collective: str = "tensorflow",
    compression: str = "none",
) -> dict[str, Any]:
    """Measure the steps of training in five groups, a block of steps per turn."""
    # docs/benchmarks.md describes the groups. "apart" keeps all cores busy without
    # communication, so "weak" against "apart" shows the time spent waiting.
    check_at_least(2, size=size, steps=steps)
    check_at_least(1, batch_size=batch_size, repeats=repeats)
    if collective == "horovod" and compression not in ("none", "fp16"):
        raise ValueError(
            "Horovod has no compression but 'fp16'. Received: compression="
            f"{compression!r}. Use 'fp16', or collective='tensorflow'."
        )
    settings = {"steps": steps, "repeats": repeats, "compression": compression}

    def group(name: str, batch_size: int, size: int = 1, joined: bool = True) -> Group:
        own = settings | {"batch_size": batch_size}
        return training_group(name, own, size, joined=joined, collective=collective)

    groups = [
        group("plain", batch_size),
        group("alone", batch_size),
        group("apart", batch_size, size, joined=False),
        # Batch sizes are global.
        group("weak", batch_size * size, size),
        group("strong", batch_size, size),
    ]
    reports = start(groups)
    blocks = {group.name: ranks for group, ranks in zip(groups, reports, strict=True)}
    figures = training_figures(batch_size, size, blocks)
    return {"compression": compression, **figures}


def training_group(
    name: str,
    settings: Mapping[str, Any],
    size: int,
    *,
    joined: bool = True,
    collective: str = "tensorflow",
) -> Group:
    """Return a group that runs the training program; "plain" uses no strategy."""
    is_plain = name == "plain"
    collective = "tensorflow" if is_plain else collective
    return Group(
        name,
        "tfdist.benchmarks.training_program",
        {**settings, "collective": None if is_plain else collective},
        size,
        joined,
        collective,
        HOROVOD_ENV if collective == "horovod" else {},
        pinned=True,
    )


def training_figures(
    batch_size: int, size: int, steps: Mapping[str, Sequence[Blocks]]
) -> dict[str, Any]:
    """Return median steps in seconds and the ratios of the five groups, as spreads."""
    # A ratio is taken within each round of blocks, which followed each other in
    # seconds.
    rounds = {name: seconds_by_round(ranks) for name, ranks in steps.items()}

    def compare(law: Any, name: str, base: str, *arguments: int) -> dict[str, float]:
        pairs = zip(rounds[name], rounds[base], strict=True)
        return spread([law(*pair, *arguments) for pair in pairs])

    return {
        "batch_size": batch_size,
        "processes": size,
        "step_seconds": medians(rounds),
        # With equal batches the ratio of speeds is that of the steps.
        "speed_against_plain": compare(weak_scaling_efficiency, "alone", "plain"),
        "weak_efficiency": compare(weak_scaling_efficiency, "weak", "alone"),
        "strong_efficiency": compare(
            strong_scaling_efficiency, "strong", "alone", size
        ),
        "waiting_share": compare(waiting_share, "weak", "apart"),
    }
