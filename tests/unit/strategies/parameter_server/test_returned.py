import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.returned import Returned


@pytest.fixture
def noted():
    """Return what knows of a step that returned this, and its other numbers."""

    def noted(outputs, of_metrics=()):
        kept = []

        def step():
            made, notes = outputs(), []
            for metric, name in of_metrics:
                result = tf.constant(9.0)
                made[name] = result
                notes.append((result, metric, None))
            returned = Returned(keras.Sequential(name="m"))
            kept.append(returned)
            return returned.note(made, notes)

        numbers = tf.function(step, autograph=False)()
        return kept[-1], [float(number) for number in numbers]

    return noted


def test_numbers_beside_metrics_are_told_and_put_back(noted):
    metric = keras.metrics.Mean()
    metric.update_state([2.0, 4.0])
    returned, numbers = noted(
        lambda: {"b": tf.constant(1.5), "a": 3}, [(metric, "mean")]
    )

    # In the order of the names.
    assert numbers == [3.0, 1.5]
    assert returned.count == 2
    assert [float(one) for one in returned.metric_results()] == [3.0]
    filled = returned.filled([3.0], np.array([3.0, 1.5]))
    assert filled == {"a": 3.0, "b": 1.5, "mean": 3.0}


def test_what_is_no_dictionary_is_nothing(noted):
    returned, numbers = noted(lambda: tf.constant(1.0))

    assert (returned.count, numbers) == (0, [])
    assert returned.filled([], np.zeros(0)) == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [(lambda: tf.zeros([2]), "float32 of shape"), (lambda: "a", "string of shape")],
    ids=["vector", "string"],
)
def test_other_things_than_numbers_are_refused(noted, value, words):
    with pytest.raises(
        ValueError,
        match=rf"^A step may return results of metrics and single numbers, under "
        rf"parameter servers\. Received: {words} .* from the model 'm'\. Let a keras",
    ):
        noted(lambda: {"a": value()})
