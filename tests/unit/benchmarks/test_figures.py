"""Figures against numbers worked out by hand."""

import pytest

from tfdist.benchmarks.figures import (
    Spread,
    allreduce_figures,
    memory_figures,
    spread,
    training_figures,
)


def test_a_spread_is_the_median_and_the_quartiles():
    assert spread([5.0, 1.0, 4.0, 2.0, 3.0]) == Spread(3.0, 2.0, 4.0)


def test_the_spread_of_one_figure_is_that_figure():
    assert spread([2.0]) == Spread(2.0, 2.0, 2.0)


def test_an_all_reduce_ends_when_the_last_rank_has_its_result():
    ranks = [
        {"tfdist": [0.001, 0.004, 0.002], "single_ring": [0.004, 0.002, 0.002]},
        {"tfdist": [0.002, 0.001, 0.002], "single_ring": [0.002, 0.006, 0.002]},
    ]

    figures = allreduce_figures(4_000_000, ranks)

    # Slowest of both: 2, 4 and 2 ms against 4, 6 and 2 ms.
    assert figures == {
        "bytes": 4_000_000,
        "seconds": 0.002,
        "bus_bytes_per_second": pytest.approx(2e9),
        "single_ring_seconds": 0.004,
        "times_single_ring": {"median": 1.5, "low": 1.25, "high": 1.75},
    }


def steps(**overrides):
    """Return blocks of 100 ms steps of each kind, with those of some replaced."""
    sizes = {"plain": 1, "alone": 1, "apart": 2, "weak": 2, "strong": 2}
    return {name: [[[0.1, 0.1]]] * size for name, size in sizes.items()} | overrides


def test_ratios_are_taken_within_each_round():
    # The machine is twice as slow in the second round; all are slow alike.
    alone = [[[0.03, 0.03, 9.9], [0.06, 0.06]]]
    plain = [[[0.03, 0.03], [0.06, 0.06]]]
    weak = [[[0.04, 0.04], [0.08, 0.08]], [[0.03, 0.03], [0.07, 0.07]]]
    strong = [[[0.02, 0.02], [0.04, 0.04]]] * 2
    apart = [[[0.032, 0.032], [0.064, 0.064]]] * 2

    figures = training_figures(
        64, 2, steps(plain=plain, alone=alone, apart=apart, weak=weak, strong=strong)
    )

    assert figures["speed_against_plain"]["median"] == pytest.approx(1.0)
    assert figures["weak_efficiency"]["low"] == pytest.approx(0.75)
    assert figures["weak_efficiency"]["high"] == pytest.approx(0.75)
    assert figures["strong_efficiency"]["median"] == pytest.approx(0.75)
    assert figures["waiting_share"]["median"] == pytest.approx(0.2)


def test_step_times_are_medians_on_the_slowest_rank():
    weak = [[[0.1, 0.2, 0.3]], [[0.1, 0.4, 0.9]]]

    figures = training_figures(512, 2, steps(weak=weak))

    assert figures["step_seconds"] == {
        "plain": 0.1,
        "alone": 0.1,
        "apart": 0.1,
        "weak": 0.4,
        "strong": 0.1,
    }
    assert (figures["batch_size"], figures["processes"]) == (512, 2)


def test_memory_that_grows_is_told_from_memory_that_is_there_anyway():
    # 50 bytes in any case, and 3 for each byte of gradients.
    figures = memory_figures([100, 400], [(1000, 1350), (1900, 3150)])

    assert figures["growth_times_gradients"] == pytest.approx(3.0)
    assert figures["constant_bytes"] == pytest.approx(50.0)
    assert figures["models"][1] == {
        "gradient_bytes": 400,
        "plain_peak_bytes": 1900,
        "distributed_peak_bytes": 3150,
        "added_times_gradients": 3.125,
    }
