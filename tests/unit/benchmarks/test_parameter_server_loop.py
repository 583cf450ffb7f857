"""The loop by hand: its Adam is that of Keras, and its batches are as many as asked."""

import keras
import numpy as np
import tensorflow as tf

from tfdist.benchmarks.parameter_server_loop import Adam, _batches


def test_its_adam_is_that_of_keras():
    first = np.float32([1.0, -2.0, 3.0])
    gradients = [np.float32([0.5, 0.25, -1.0]), np.float32([0.1, -0.2, 0.3])]
    theirs = keras.Variable(first)
    optimizer = keras.optimizers.Adam(0.001)
    ours = tf.Variable(first)
    adam = Adam([ours])

    for gradient in gradients:
        optimizer.apply([tf.constant(gradient)], [theirs])
        adam.apply([tf.constant(gradient)])

    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert adam.updates.numpy() == 2


def test_the_chief_reads_the_batches_of_a_closure():
    batches = next(_batches(None, "chief", 4, 3))

    assert [features.shape for features, _ in batches] == [(4, 784)] * 3


def test_workers_read_as_many():
    class Coordinator:
        def create_per_worker_dataset(self, make):
            return make()

    readers = next(_batches(Coordinator(), "workers", 4, 3))

    assert len(readers) == 3
    assert next(readers[0])[0].shape == (4, 784)
