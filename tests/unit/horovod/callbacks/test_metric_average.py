"""MetricAverageCallback alone; its means over ranks are in tests/distributed."""

import pytest

pytestmark = pytest.mark.requires("horovodrun")


def test_alone_the_logs_stay_as_they_are(hvd, fit):
    average = hvd.callbacks.MetricAverageCallback()
    first = fit(average, epochs=2, validation_split=0.5)
    second = fit(average)

    # -0.1 and so on: w after 0, 1, 2 and 3 steps of the first epoch on two rows.
    assert first["loss"] == pytest.approx([-0.05, -0.25])
    assert first["val_loss"] == pytest.approx([-0.2, -0.4])
    assert all(type(value) is float for value in first["loss"] + second["loss"])


def test_logs_that_are_none_take_part(hvd):
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0)


def test_arrays_keep_their_shape(hvd):
    logs = {"confusion": [[1.0, 2.0]]}
    hvd.callbacks.MetricAverageCallback("/cpu:0").on_epoch_end(0, logs)

    assert logs["confusion"].tolist() == [[1.0, 2.0]]
