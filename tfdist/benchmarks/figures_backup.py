"""From clock readings to the figures of backups: pure arithmetic."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tfdist.benchmarks.figures import seconds_by_round, spread

# What a process reports: the seconds of its epochs by turn, and what its states took.
Report = Mapping[str, Any]

NO_BACKUP = "none"


def backup_figures(groups: Mapping[str, Sequence[Report]]) -> dict[str, Any]:
    """Work out what saving states costs an epoch.

    The cost is taken within each round of turns, from the median epochs of two groups;
    the figure is the median over the rounds. It is noisy where it is small. How long
    saving a state holds the training up is not, but leaves out what threads do later.

    Args:
        groups: The reports of the processes of each group, by rank; that of "none"
            saves nothing. See `run_backup`.

    Returns:
        Of each group the median epoch in seconds, and of each that saves states the
        added share of an epoch, as a `Spread`, and what a state takes.
    """
    rounds = {
        name: seconds_by_round([report["turns"] for report in ranks])
        for name, ranks in groups.items()
    }
    saving = [name for name in groups if name != NO_BACKUP]
    return {
        "processes": len(groups[NO_BACKUP]),
        "epoch_seconds": {
            name: statistics.median(values) for name, values in rounds.items()
        },
        "cost": {
            name: asdict(
                spread(
                    [
                        epoch / without - 1
                        for epoch, without in zip(
                            rounds[name], rounds[NO_BACKUP], strict=True
                        )
                    ]
                )
            )
            for name in saving
        },
        "saves": {name: _saves([r["saves"] for r in groups[name]]) for name in saving},
    }


def _saves(ranks: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, Any]:
    """Say what a state takes, on the rank where that is longest.

    A rank that does not take part has no figures; the chief alone writes.
    """
    holds = [
        max(of_save)
        for of_save in zip(
            *(saves["hold_seconds"] for saves in ranks if saves["hold_seconds"]),
            strict=True,
        )
    ]
    chief = ranks[0]
    is_beside = bool(chief["disk_seconds"])
    return {
        "count": len(holds),
        "hold_seconds": asdict(spread(holds)),
        "longest_hold_seconds": max(holds),
        "disk_seconds": asdict(spread(chief["disk_seconds"])) if is_beside else None,
        "bytes": statistics.median(chief["bytes"]) if is_beside else None,
    }
