"""What Keras's mean loss says about examples; `fit` is in test_throughput.py."""

import keras
import numpy as np
import pytest

from tfdist.callbacks.example_count import counted_by_keras


def test_each_row_counts_until_the_metrics_start_anew(model):
    model.fit(np.ones((8, 1)), np.ones((8, 1)), batch_size=5, verbose=0)
    counted = counted_by_keras(model, 2)
    model.reset_metrics()

    assert (counted, counted_by_keras(model, 0)) == (8.0, 0.0)


def test_before_the_first_step_nobody_is_refused():
    class CountsSteps(keras.Model):
        def train_step(self, data):
            return {}

    model = CountsSteps()
    model.compile("sgd", "mse")

    assert counted_by_keras(model, 0) == 0.0
    with pytest.raises(ValueError, match="examples_per_step must be given"):
        counted_by_keras(model, 1)
