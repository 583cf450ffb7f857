"""The logs of steps, which callbacks read in `on_train_batch_end`."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.training import Training

X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
Y = X[:, :1] - 2 * X[:, 1:2]


@pytest.mark.parametrize(("consistency", "most"), [("async", None), ("bounded", 3)])
def test_the_first_logs_of_an_epoch_are_those_of_its_first_batch(
    make_job, model, consistency, most
):
    job = make_job(consistency, most)
    job.coordinator.waiting = []
    model.evaluate(X, Y, verbose=0)
    training = Training(job, model, model.train_step, is_training=True)
    for _ in range(3):
        model.reset_metrics()
        expected = model.test_on_batch(X[:3], Y[:3])
        model.reset_metrics()
        iterator = iter(tf.data.Dataset.from_tensor_slices((X, Y)).batch(3))
        found = [training(iterator)["loss"] for _ in range(4)]
        training.finish()

        assert found[0] == pytest.approx(float(expected), rel=1e-5)
