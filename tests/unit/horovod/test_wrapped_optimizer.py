"""Wrapped optimizers in one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


def embedding_model(optimizer, **options):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Embedding(5, 3), keras.layers.GlobalAveragePooling1D()]
    model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
    model.compile(optimizer, "mse", **options)
    x = np.arange(24).reshape(6, 4) % 5
    model.fit(x, np.ones((6, 3)), batch_size=2, shuffle=False, verbose=0)
    return model.get_weights()


def test_alone_it_does_what_the_plain_optimizer_does(hvd):
    make = keras.optimizers.Adam

    for own, plain in zip(
        embedding_model(hvd.DistributedOptimizer(make(0.1))),
        embedding_model(make(0.1)),
        strict=True,
    ):
        np.testing.assert_allclose(own, plain, rtol=1e-6)


def test_several_optimizers_in_one_are_wrapped_together(hvd):
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        pytest.skip("Keras has MultiOptimizer since 3.15")
    inner = keras.optimizers.OptimizerMap(keras.optimizers.SGD(1.0))
    many = hvd.DistributedOptimizer(
        keras.optimizers.MultiOptimizer(inner), backward_passes_per_step=2
    )
    x = keras.Variable(0.0)
    for _ in range(4):
        many.apply([1.0], [x])

    assert float(x) == -4.0
    assert int(many.iterations) == 4


def test_gradients_alone_are_of_the_variables_it_was_built_with(hvd):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    x = keras.Variable(1.0)
    with pytest.raises(ValueError, match="must already be built"):
        optimizer.apply([1.0])
    optimizer.build([x])
    optimizer.apply([1.0])

    assert float(x) == 0.0


def test_sparse_gradients_of_several_passes_must_be_made_dense(hvd):
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(), backward_passes_per_step=2
    )
    gradient = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    with pytest.raises(ValueError, match="Pass sparse_as_dense=True"):
        optimizer.apply([gradient], [keras.Variable(np.zeros((3, 2)))])


def test_a_strategy_is_refused(hvd):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
    with (
        tf.distribute.OneDeviceStrategy("cpu:0").scope(),
        pytest.raises(RuntimeError, match="must be used without a strategy"),
    ):
        optimizer.apply([1.0], [keras.Variable(0.0)])


@pytest.mark.parametrize("passes", [1, 2])
def test_variables_are_overwritten_where_nothing_is_added_up(hvd, monkeypatch, passes):
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(), backward_passes_per_step=passes
    )
    x, y = keras.Variable(0.0), keras.Variable(0.0)
    x.overwrite_with_gradient = True
    if passes == 1:
        optimizer.apply([5.0, 1.0], [x, y])
        assert float(x) == 5.0
        monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    with pytest.raises(ValueError, match="cannot be overwritten with its gradient"):
        optimizer.apply([1.0, 1.0], [x, y])


def test_an_update_that_fails_is_made_again(hvd):
    from tfdist.horovod.wrapped_optimizer import Accumulation

    accumulation, x = Accumulation(2), keras.Variable(0.0)
    updates = []

    def update(sums):
        updates.append(float(sums[0]))
        if len(updates) == 1:
            raise OSError("a rank has gone")

    make_pass = lambda: accumulation.add([tf.ones([])], [x], update, lambda: None)  # noqa: E731
    make_pass()
    with pytest.raises(OSError, match="a rank has gone"):
        make_pass()
    make_pass()

    assert updates == [2.0, 3.0]
    assert accumulation.counter.numpy() == 0
