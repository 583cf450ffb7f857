import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.single import SingleCollective
from tfdist.compat.keras.losses_and_metrics import noted_results
from tfdist.data.sharding import Shard
from tfdist.training.metrics import MetricsOfRanks, gather_rows, join_rows, own_rows
from tfdist.training.step import Step


def compiled(*metrics, model=keras.Sequential):
    made = model([keras.Input((1,)), keras.layers.Identity()], name="model")
    made.compile("sgd", "mse", metrics=[*metrics] or None)
    return made


class Custom(keras.Sequential):
    """A model whose steps may return anything."""

    def test_step(self, data):
        return super().test_step(data)


def results(collective, model, logs):
    """Return what Keras would get: metrics, or the logs where keys differ."""

    def result(logs):
        metrics = model.get_metrics_result()
        return metrics if logs.keys() == metrics.keys() else logs

    return MetricsOfRanks(collective).result(model, result, logs)


# Metrics are computed from states.


class Aggregated(keras.metrics.Metric):
    """Holds one number for each way to aggregate it."""

    def __init__(self):
        super().__init__(name="aggregated")
        self.parts = [
            self.add_variable((), "zeros", name=way, aggregation=way)
            for way in ("sum", "mean", "only_first_replica")
        ]

    def update_state(self, y, p, sample_weight=None):
        pass

    def result(self):
        return keras.ops.stack([part.value for part in self.parts])


def test_each_variable_is_reduced_by_its_aggregation(on_ranks):
    def reduce(collective):
        metric = Aggregated()
        model = compiled(metric)
        model.evaluate(np.ones((2, 1)), np.ones((2, 1)), verbose=0)
        for number, part in enumerate(metric.parts):
            part.assign(10 * collective.rank + number + 1)
        found = results(collective, model, model.get_metrics_result())["aggregated"]
        return found.numpy().tolist(), [float(part) for part in metric.parts]

    # Of 1 and 11 the sum, of 2 and 12 the mean, of 3 and 13 the first; no rank's own
    # variables change.
    of_all = [12.0, 7.0, 3.0]
    assert on_ranks(2, reduce) == [(of_all, [1, 2, 3]), (of_all, [11, 12, 13])]


# Logs of steps that return something else.


def step_on(own, rows, collective):
    own, rows = (tf.constant(n, tf.int64) for n in (own, rows))
    return Step(Shard(None, rows, own, ()), None, collective)


def logs_of_all(on_ranks, logs, owns):
    """Return what each rank gets for what its last step, of so many rows, returned."""

    def reduce(collective):
        rank, model = collective.rank, compiled(model=Custom)
        its = {name: to_log(value) for name, value in logs[rank].items()}
        share = step_on(owns[rank], sum(owns), collective).share()
        return reduced(MetricsOfRanks(collective), model, share, its)

    return [
        {name: np.asarray(value).tolist() for name, value in found.items()}
        for found in on_ranks(len(owns), reduce)
    ]


def to_log(value):
    return value if isinstance(value, str) else tf.constant(value)


def reduced(metrics, model, share, logs):
    """Return the logs of a step over all ranks; another step has other logs."""
    for what, its in [("train_step", logs), ("test_step", {"other": tf.constant(1.0)})]:
        metrics.note_step(model, what, share, its, [])
        metrics.note_logs(model, what, its)
    return metrics.result(model, lambda logs: logs, logs)


def test_logs_that_are_not_float_numbers_are_equal_on_all_ranks(on_ranks):
    """As a callback that monitors one of them decides alike on all ranks then."""
    logs = [
        {"count": 3, "vector": [1.0, 4.0], "rows": [1.0], "text": "a"},
        {"count": 5, "vector": [5.0, 8.0], "rows": [2.0, 3.0], "text": "b"},
        {"count": 7, "vector": [9.0, 9.0], "rows": [4.0], "text": "c"},
    ]

    found = logs_of_all(on_ranks, logs, [1, 3, 0])

    for text, its in zip("abc", found, strict=True):
        wanted = {"count": 5, "vector": [4.0, 7.0], "rows": [2.0, 3.0]}
        assert its == {**wanted, "text": text}


def test_a_log_that_a_step_computes_from_metrics_is_warned_of(on_ranks):
    class Squared(Custom):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            logs = super().compute_metrics(x, y, y_pred, sample_weight)
            return {**logs, "other": y[0, 0], "squared": logs["mae"] ** 2}

    model = compiled("mae", model=Squared)
    metrics = MetricsOfRanks(SingleCollective())

    @tf.function
    def step(x, y):
        with noted_results(model) as noted:
            logs = model.compute_metrics(x, y, model(x))
        share = tf.constant(1.0, tf.float64)
        metrics.note_step(model, "train_step", share, logs, noted)
        return logs

    logs = step(tf.ones([2, 1]), tf.ones([2, 1]))
    metrics.note_logs(model, "train_step", logs)
    with pytest.warns(UserWarning, match="'squared' is an average") as warned:
        metrics.result(model, lambda logs: logs, logs)
    assert len(warned) == 1


def test_rows_that_are_ragged_twice_are_joined(on_ranks):
    parts = [[[[1, 2], []], []], [[[3]], [[4], [5, 6]]]]

    for found in on_ranks(
        2, lambda c: gather_rows(tf.ragged.constant(parts[c.rank]), c)
    ):
        assert found.ragged_rank == 2
        assert found.to_list() == [[[1, 2], []], [], [[3]], [[4], [5, 6]]]


def test_rows_of_devices_are_joined_in_their_order():
    one = {"x": tf.constant([[1.0]]), "y": tf.ragged.constant([[1.0]])}
    other = {"x": tf.constant([[2.0], [3.0]]), "y": tf.ragged.constant([[], [2.0]])}

    joined = join_rows([one, other])

    assert joined["x"].numpy().tolist() == [[1.0], [2.0], [3.0]]
    assert joined["y"].to_list() == [[1.0], [], [2.0]]


def shard_of(own):
    """Return the shard of a rank with rows, or with a placeholder."""
    rows = tf.constant(own, tf.int64)
    return Shard(tf.zeros([max(own, 1), 2]), rows, rows, (tf.equal(rows, 0),))


MUST = r"Every output of predict must have equally many rows for each row of input\."
REMEDY = r"Repeat it for each row, or call predict_on_batch, which one rank runs\."


@pytest.mark.parametrize(
    ("output", "received"),
    [
        (lambda x: tf.reduce_mean(x), r"a dense tensor of \(\)"),
        (lambda x: tf.reduce_mean(x, 0, keepdims=True), r"a dense tensor of \(1, 2\)"),
        (lambda x: tf.sparse.from_dense(x), r"a sparse tensor of \(None, 2\)"),
    ],
)
def test_outputs_without_rows_of_their_own_are_refused(output, received):
    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def predict(x):
        return own_rows(output(x), shard_of(3))

    with pytest.raises(ValueError, match=rf"{MUST} Received: {received}\. {REMEDY}"):
        predict(tf.zeros([3, 2]))


def test_an_output_with_a_row_for_some_rows_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        own_rows(tf.zeros([2, 2]), shard_of(3))

    text = " ".join(caught.value.message.replace("b'", "").replace("'", "").split())
    assert re.search(rf"{MUST} Received: 2 rows for 3 rows of input\. {REMEDY}", text)
