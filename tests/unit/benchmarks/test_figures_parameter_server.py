"""The figures of the parameter-server benchmark, with numbers computed by hand."""

import pytest

from tfdist.benchmarks.figures_parameter_server import (
    bytes_figures,
    kept_speed_figures,
    speed_figures,
    staleness_figures,
)


def epoch(seconds, processor_seconds=1.0, sent_bytes=100):
    return {
        "seconds": seconds,
        "processor_seconds": processor_seconds,
        "sent_bytes": sent_bytes,
    }


def test_the_speed_is_compared_within_each_round():
    figures = speed_figures(
        10,
        {
            "tfdist": {
                "epochs": [epoch(1.0, 2.0), epoch(2.0, 4.0), epoch(4.0, 1.0)],
                "staleness": {"0": 30},
            },
            "loop": {"epochs": [epoch(1.5, 1.0), epoch(3.0, 2.0), epoch(4.0, 1.0)]},
        },
    )

    assert figures["jobs"]["tfdist"]["steps_per_second"]["median"] == 5.0
    assert figures["jobs"]["loop"]["processor_seconds_per_step"]["median"] == 0.1
    assert figures["jobs"]["loop"]["bytes_per_step"]["median"] == 10.0
    assert figures["speed_against"]["loop"]["median"] == 1.5
    assert figures["thrift_against"]["loop"]["median"] == 0.5
    assert figures["speed_against"].keys() == {"loop"}


def test_bytes_that_cannot_be_counted():
    epochs = [epoch(1.0, sent_bytes=None)]
    reports = {"tfdist": {"epochs": epochs, "staleness": {"0": 1}}}

    figures = speed_figures(1, reports)

    assert figures["jobs"]["tfdist"]["bytes_per_step"] is None
    assert bytes_figures(1, epochs, 50)["times_touched"] is None


def test_the_histogram_of_the_staleness():
    figures = staleness_figures({"0": 50, "1": 30, "2": 19, "12": 1})

    assert figures["histogram"] == {0: 50, 1: 30, 2: 19, 12: 1}
    assert (figures["median"], figures["percentile_99"]) == (0, 2)
    assert figures["largest"] == 12


def test_without_any_update_nothing_is_stale():
    assert staleness_figures({})["largest"] == 0
    assert staleness_figures({})["median"] == 0


def test_the_speed_that_is_kept_of_a_sum():
    reports = {
        "worker": [epoch(1.0), epoch(1.0)],
        "slow_worker": [epoch(2.0), epoch(2.0)],
        "both": [epoch(0.8), epoch(0.8)],
    }

    figures = kept_speed_figures(12, reports, "both")

    assert figures["steps_per_second"]["both"]["median"] == pytest.approx(15.0)
    assert figures["kept_speed"]["median"] == pytest.approx(15 / 18)


def test_bytes_against_the_rows_that_are_touched():
    figures = bytes_figures(2, [epoch(1.0), epoch(1.0), epoch(1.0)], 25)

    assert figures == {"bytes_per_step": 50, "touched_bytes": 25, "times_touched": 2}
