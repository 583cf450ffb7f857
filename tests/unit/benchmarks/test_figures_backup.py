"""Figures of backups against numbers worked out by hand."""

import pytest

from tfdist.benchmarks.figures_backup import backup_figures

NO_SAVES = {"hold_seconds": [], "disk_seconds": [], "bytes": []}


def report(*turns, **saves):
    return {"turns": list(turns), "saves": NO_SAVES | saves}


def test_the_cost_is_taken_within_each_round_on_the_slowest_rank():
    # The machine is twice as slow in the second round; all are slow alike.
    figures = backup_figures(
        {
            "none": [report([0.5, 0.5], [1.0]), report([0.5], [0.75])],
            "tfdist": [
                report([0.5], [1.0], hold_seconds=[0.25]),
                report([0.625], [1.25], hold_seconds=[0.25]),
            ],
        }
    )

    assert figures["processes"] == 2
    assert figures["epoch_seconds"] == {"none": 0.75, "tfdist": 0.9375}
    assert figures["cost"] == {
        "tfdist": {name: pytest.approx(0.25) for name in ("median", "low", "high")}
    }


def test_what_a_state_takes_where_that_is_longest():
    ranks = [
        report(
            [1.0],
            hold_seconds=[0.1, 0.2, 0.3],
            disk_seconds=[0.5, 0.6, 0.7],
            bytes=[100, 102, 101],
        ),
        report([1.0], hold_seconds=[0.2, 0.1, 0.9]),
    ]

    figures = backup_figures({"none": [report([1.0])] * 2, "tfdist": ranks})

    assert figures["saves"]["tfdist"] == {
        "count": 3,
        "hold_seconds": {"median": 0.2, "low": 0.2, "high": pytest.approx(0.55)},
        "longest_hold_seconds": 0.9,
        "disk_seconds": {
            "median": 0.6,
            "low": pytest.approx(0.55),
            "high": pytest.approx(0.65),
        },
        "bytes": 101,
    }


def test_a_chief_that_saves_alone_and_writes_meanwhile():
    ranks = [report([1.0], hold_seconds=[0.1]), report([1.0])]

    figures = backup_figures({"none": [report([1.0])] * 2, "keras": ranks})

    saves = figures["saves"]["keras"]
    assert (saves["count"], saves["hold_seconds"]["median"]) == (1, 0.1)
    assert (saves["disk_seconds"], saves["bytes"]) == (None, None)
