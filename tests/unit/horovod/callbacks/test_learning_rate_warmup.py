"""Horovod's warm-up in one process; on two ranks, see tests/distributed."""

import numpy as np
import pytest

pytestmark = pytest.mark.requires("horovodrun")


@pytest.fixture
def four_ranks(hvd, monkeypatch):
    """A warm-up that believes to be one of four ranks."""
    module = "tfdist.horovod.callbacks.learning_rate"
    native = type("Native", (), {"size": lambda: 4, "rank": lambda: 0})
    monkeypatch.setattr(f"{module}.native", native)


def test_it_ends_on_the_whole_rate(hvd, four_ranks, fit, rates, capsys):
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2, verbose=1)
    # 0.2 for one rank, then 0.6 in eight steps.
    expected = [0.275, 0.35, 0.425, 0.5, 0.575, 0.65, 0.725, 0.8]
    history = fit(warmup, rates, epochs=3)
    fit(warmup, rates, epochs=1)

    assert rates.values == pytest.approx([*expected, *[0.8] * 4, *expected[:4]])
    assert history["lr"] == pytest.approx([0.5, 0.8, 0.8])
    assert capsys.readouterr().out == (
        "\nEpoch 2: the warm-up has ended, learning rate 0.8.\n"
    )


def test_alone_there_is_nothing_to_warm_up(hvd, fit, rates):
    fit(hvd.callbacks.LearningRateWarmupCallback(0.8), rates)

    assert rates.values == [0.8] * 4


def test_no_epochs_leave_the_rate_alone(hvd, four_ranks, fit, rates):
    fit(hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=0), rates)

    assert rates.values == [0.1] * 4


def test_less_than_no_epochs_are_refused(hvd):
    with pytest.raises(
        ValueError,
        match=r"^warmup_epochs must not be negative\. Received: warmup_epochs=-1\. Use",
    ):
        hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=-1)


def test_no_epochs_need_no_steps(hvd, model):
    def batches():
        yield from [(np.ones((1, 1)), np.ones((1, 1)))] * 2

    warmup = hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=0)
    history = model.fit(batches(), callbacks=[warmup], verbose=0)

    assert history.history["lr"] == pytest.approx([0.1])
