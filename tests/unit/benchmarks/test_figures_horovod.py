"""Figures of Horovod against numbers worked out by hand."""

import pytest

from tfdist.benchmarks.figures_horovod import (
    horovod_allreduce_figures,
    horovod_training_figures,
)

RANKS = [
    {"tfdist": [0.002, 0.004], "graph": [0.001, 0.004], "eager": [0.004, 0.001]},
    {"tfdist": [0.001, 0.002], "graph": [0.002, 0.002], "eager": [0.001, 0.006]},
]


def test_the_share_of_the_bandwidth_is_taken_call_by_call():
    figures = horovod_allreduce_figures(4_000_000, RANKS)

    # Slowest of both: 2 and 4 ms; 2 and 4 ms; 4 and 6 ms.
    assert figures["bytes"] == 4_000_000
    assert figures["seconds"] == pytest.approx(
        {"tfdist": 0.003, "graph": 0.003, "eager": 0.005}
    )
    assert figures["bus_bytes_per_second"]["eager"] == pytest.approx(0.8e9)
    shares = figures["share_of_bandwidth"]
    assert shares["graph"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert shares["eager"] == {"median": 1.75, "low": 1.625, "high": 1.875}


def test_torch_is_beside_them_where_it_was_measured():
    torch = [{"torch": [0.001, 0.002]}, {"torch": [0.002, 0.001]}]

    figures = horovod_allreduce_figures(4_000_000, RANKS, torch)

    assert figures["seconds"]["torch"] == 0.002
    assert figures["bus_bytes_per_second"]["torch"] == pytest.approx(2e9)
    assert set(figures["share_of_bandwidth"]) == {"graph", "eager"}


# The machine is twice as slow in the second round; all are slow alike.
OURS = {
    "alone": [[[0.03, 0.03], [0.06, 0.06]]],
    "weak": [[[0.04, 0.04], [0.08, 0.08]], [[0.03, 0.03], [0.07, 0.07]]],
}
THEIRS = {
    "their_alone": [[[0.03], [0.06]]],
    "their_weak": [[[0.05], [0.10]], [[0.04], [0.08]]],
}


def test_without_horovods_own_optimizer_there_is_one_efficiency():
    figures = horovod_training_figures(64, 2, OURS)

    assert figures == {
        "batch_size": 64,
        "processes": 2,
        "step_seconds": pytest.approx({"alone": 0.045, "weak": 0.06}),
        "weak_efficiency": pytest.approx({"median": 0.75, "low": 0.75, "high": 0.75}),
    }


def test_both_efficiencies_are_compared_within_each_round():
    figures = horovod_training_figures(64, 2, OURS | THEIRS)

    assert figures["weak_efficiency"]["median"] == pytest.approx(0.75)
    assert figures["their_weak_efficiency"]["median"] == pytest.approx(0.6)
    # 0.75 against 0.6, and 40 ms against 50 ms, in both rounds.
    for name in ("efficiency_against_theirs", "speed_against_theirs"):
        assert figures[name] == pytest.approx(
            {"median": 1.25, "low": 1.25, "high": 1.25}
        )
    assert figures["step_seconds"]["their_weak"] == pytest.approx(0.075)
