"""Multipliers of the learning rate; unit/callbacks has the steps of a warm-up."""

import pytest

from tfdist.learning_rate import exponential_multiplier, warmup_multiplier


@pytest.mark.parametrize(
    ("epoch", "expected"), [(5, 1.0), (6, 0.1), (7, 0.01), (5.5, 0.31622776601683794)]
)
def test_a_constant_decays_from_its_first_epoch(epoch, expected):
    assert exponential_multiplier(0.1, epoch, start_epoch=5) == pytest.approx(expected)


def test_one_process_needs_no_warmup():
    assert warmup_multiplier(0.0, size=1, warmup_epochs=5, steps_per_epoch=10) == 1.0


@pytest.mark.parametrize("name", ["size", "warmup_epochs", "steps_per_epoch"])
def test_a_warmup_over_nothing_is_refused(name):
    arguments = {"size": 2, "warmup_epochs": 5, "steps_per_epoch": 10, name: 0}

    with pytest.raises(
        ValueError, match=rf"^{name} must be positive\. Received: {name}=0\. Leave"
    ):
        warmup_multiplier(0.0, **arguments)
