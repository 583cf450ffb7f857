"""LearningRateWarmup in real `fit` calls, against Horovod's formula."""

import numpy as np
import pytest

from tfdist.callbacks import LearningRateScale, LearningRateWarmup


def horovods(rate, size, epochs, steps):
    """Return the rate of each step of a warm-up, as Horovod has it, and one more."""
    epoch = np.arange(epochs * steps) / steps + 1.0 / steps
    return [*(rate / size * (epoch * (size - 1) / epochs + 1)), rate]


@pytest.mark.parametrize("scale_is_first", [True, False])
def test_each_step_has_the_rate_of_horovod_s_formula(fit, rates, scale_is_first):
    both = [LearningRateScale(size=8), LearningRateWarmup(warmup_epochs=2)]
    if not scale_is_first:
        both.reverse()
    fit(*both, rates, steps=3, epochs=3)

    expected = horovods(0.8, size=8, epochs=2, steps=3)
    np.testing.assert_allclose(rates.values, [*expected, 0.8, 0.8], rtol=1e-5)


def test_it_begins_below_the_square_root_of_the_size_too(fit, rates):
    fit(LearningRateScale("sqrt", size=4), LearningRateWarmup(1), rates, steps=2)

    # From 0.1 to 0.2, half of the way each.
    assert rates.values == [0.15, 0.2]


def test_a_rate_that_was_scaled_by_hand_begins_at_a_part_of_it(fit, rates, monkeypatch):
    monkeypatch.setattr("tfdist.callbacks.learning_rate_warmup.growth_of", lambda _: 4)
    fit(LearningRateWarmup(1), rates, steps=3)

    assert rates.values == [0.05, 0.075, 0.1]


def test_alone_there_is_nothing_to_warm_up(fit, rates):
    fit(LearningRateWarmup(2), rates, epochs=2, steps=2)

    assert rates.values == [0.1] * 4


def test_a_second_fit_warms_up_again(fit, rates):
    both = [LearningRateWarmup(1), LearningRateScale(size=2)]
    fit(*both, rates, steps=2)
    fit(*both, rates, steps=1, epochs=2)

    assert rates.values == [0.15, 0.2, 0.2, 0.2]


def test_a_training_that_goes_on_in_the_midst_of_it_does_so_too(fit, rates):
    both = [LearningRateWarmup(4), LearningRateScale(size=2)]
    fit(*both, rates, steps=1, epochs=2)
    fit(*both, rates, steps=1, epochs=4, initial_epoch=2)

    assert rates.values == [0.125, 0.15, 0.175, 0.2]


def test_no_epochs_are_no_warmup(fit, rates):
    fit(LearningRateWarmup(0), LearningRateScale(size=2), rates, steps=2)

    assert rates.values == [0.2, 0.2]


def test_it_says_when_it_has_ended(fit, capsys):
    both = [LearningRateWarmup(1, verbose=1), LearningRateScale(size=2)]
    fit(*both, epochs=3)

    assert capsys.readouterr().out == (
        "epoch 1: the warm-up has ended, learning rate 0.2\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"warmup_epochs": -1},
            r"warmup_epochs must be a whole number, and not negati",
        ),
        (
            {"warmup_epochs": 2.5},
            r"warmup_epochs must be a whole number, and not negat",
        ),
        ({"verbose": 2}, r"verbose must be 0 or 1\. Received: verbose=2\. Use 1 for a"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        LearningRateWarmup(**arguments)
