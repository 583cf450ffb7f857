import keras
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


def test_alone_it_is_batch_normalization(hvd):
    x = np.random.default_rng(1).normal(size=(8, 3)).astype("float32")
    layers = [hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()]
    outputs = [layer(x, training=True) for layer in layers]

    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)
    for own, plain in zip(layers[0].weights, layers[1].weights, strict=True):
        np.testing.assert_allclose(own, plain, rtol=1e-5)


def test_it_is_saved_and_loaded(hvd):
    config = keras.saving.serialize_keras_object(hvd.SyncBatchNormalization(axis=1))
    loaded = keras.saving.deserialize_keras_object(config)

    assert type(loaded) is hvd.SyncBatchNormalization
    assert loaded.axis == 1


def test_the_fused_kind_is_refused(hvd):
    with pytest.raises(ValueError, match="fused must be False"):
        hvd.SyncBatchNormalization(fused=True)


def test_names_and_gradients_do_not_depend_on_the_layers(hvd):
    keras.layers.BatchNormalization()
    x = np.random.default_rng(1).normal(size=(8, 3)).astype("float32")
    layers = [hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()]
    step = tf.function(gradient)
    for found in (gradient, step):
        np.testing.assert_allclose(
            *(found(layer, tf.constant(x)) for layer in layers), rtol=1e-3, atol=1e-5
        )
    graph = step.get_concrete_function(layers[0], tf.constant(x)).graph
    names = [op.name for op in graph.get_operations() if op.type == "HorovodAllreduce"]
    assert sorted(name.split("/")[-1] for name in names) == [
        "tfdist_moments",
        "tfdist_moments_1",
        "tfdist_moments_gradient",
        "tfdist_moments_gradient_1",
    ]


def gradient(layer, x):
    with tf.name_scope("outer"), tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(layer(x, training=True) ** 2, training=True) ** 3)
    return tape.gradient(loss, x)
