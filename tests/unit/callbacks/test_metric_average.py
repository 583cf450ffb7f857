"""MetricAverage on ranks that are threads, against means worked out by hand.

That examples weigh, of training and validation, is in tests/distributed.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from tfdist.callbacks import MetricAverage


def averaged(on_ranks, logs, **options):
    """Return the logs of each rank after an epoch that ended with those."""

    def run(collective):
        callback = MetricAverage(**options)
        strategy = SimpleNamespace(collective=collective)
        callback.set_model(SimpleNamespace(distribute_strategy=strategy))
        mine = dict(logs[collective.rank])
        callback.on_epoch_begin(0)
        callback.on_epoch_end(0, mine)
        return mine

    return on_ranks(len(logs), run)


def test_a_function_of_the_logs_weighs(on_ranks):
    logs = [{"a": 1.0, "n": 1.0}, {"a": 5.0, "n": 3.0}]
    found = averaged(on_ranks, logs, weights=lambda logs: logs["n"])

    # (1 * 1 + 3 * 5) / 4, and (1 * 1 + 3 * 3) / 4.
    assert found == [{"a": 4.0, "n": 2.5}] * 2


def test_vectors_are_averaged_element_by_element(on_ranks):
    logs = [{"a": np.array([1.0, 2.0])}, {"a": np.array([3.0, 6.0])}]

    for found in averaged(on_ranks, logs):
        np.testing.assert_array_equal(found["a"], [2.0, 4.0])


def test_equal_values_stay_to_the_bit(on_ranks):
    logs = [{"a": 0.1, "b": float("nan")}] * 3
    for found in averaged(on_ranks, logs):
        assert found["a"] == 0.1
        assert np.isnan(found["b"])


def test_names_that_differ_are_told_on_every_rank(on_ranks):
    logs = [{"a": 1.0, "b": 2.0}, {"a": 1.0, "c": 2.0}]
    with pytest.raises(
        RuntimeError,
        match=r"^MetricAverage needs the same names in the logs of every rank\. "
        r"Received: rank 0 lacks \['c'\], rank 1 lacks \['b'\] of \['a', 'b', 'c'\]\.",
    ):
        averaged(on_ranks, logs)


def test_weights_of_nothing_are_refused(on_ranks):
    with pytest.raises(
        ValueError,
        match=r"^MetricAverage needs weights that are not negative, one of them "
        r"positive\. Received: \[0\.0, 0\.0\], by rank\. Correct the function weights",
    ):
        averaged(on_ranks, [{"a": 1.0}, {"a": 2.0}], weights=lambda logs: 0.0)


def test_a_rank_that_counts_nothing_does_not_count(on_ranks):
    logs = [{"a": 1.0, "n": 3.0}, {"a": float("nan"), "n": 0.0}]
    found = averaged(on_ranks, logs, weights=lambda logs: logs["n"])

    assert found == [{"a": 1.0, "n": 3.0}] * 2


@pytest.mark.parametrize("weights", ["rows", 1.0])
def test_other_weights_are_refused_at_once(weights):
    with pytest.raises(
        ValueError,
        match=rf"^weights must be None, 'examples' or a function of the logs\. "
        rf"Received: weights={weights!r}\. Use 'examples'",
    ):
        MetricAverage(weights)
