"""Figures of input against numbers worked out by hand."""

import pytest

from tfdist.benchmarks.figures_input import input_figures, verdict


def even(median):
    return {name: pytest.approx(median) for name in ("median", "low", "high")}


def test_ratios_are_taken_within_each_round():
    # The machine is twice as slow in the second round; all are slow alike.
    seconds = {
        "naive": 4.0,
        "sequential": 6.0,
        "tuned": 2.2,
        "tfdist": 2.0,
        "cached": 0.5,
    }
    feeding = {name: [each, 2 * each] for name, each in seconds.items()}
    training = {
        name: [each + 1, 2 * (each + 1)]
        for name, each in {"none": 0.0, **seconds, "cached": 0.0}.items()
    }

    figures = input_figures(12, 5, feeding, training)

    assert (figures["examples"], figures["epochs"]) == (12, 5)
    assert figures["examples_per_second"]["naive"] == pytest.approx(12 / 6)
    assert figures["speed_against"] == {
        "naive": even(2.0),
        "sequential": even(3.0),
        "tuned": even(1.1),
    }
    # One pass of 2 s, four of 0.5 s.
    assert figures["run_speed_against"] == {
        "naive": even(5.0),
        "sequential": even(7.5),
        "tuned": even(2.75),
    }
    assert figures["training_examples_per_second"]["none"] == pytest.approx(12 / 1.5)
    assert figures["input"]["naive"] == {"added_share": even(0.8), "is_bound": True}
    assert figures["input"]["cached"] == {"added_share": even(0.0), "is_bound": False}
    assert "none" not in figures["input"]


@pytest.mark.parametrize(
    ("fed", "is_bound"), [(0.9, False), (1.0, False), (1.04, False), (1.1, True)]
)
def test_a_little_is_noise(fed, is_bound):
    assert verdict([1.0], [fed])["is_bound"] is is_bound
