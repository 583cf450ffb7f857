"""The model is that of the first examples, and the data the same everywhere."""

import keras
import numpy as np

from tfdist.benchmarks.model import (
    DIGITS_SHAPE,
    build_cnn,
    make_dataset,
    make_digits,
)


def test_the_size_of_the_gradients():
    # 3x3x1x32+32, 3x3x32x64+64, 12x12x64x128+128, 128x10+10.
    assert build_cnn(keras).count_params() == 320 + 18_496 + 1_179_776 + 1_290


def test_images_may_have_the_shape_of_digits():
    model = build_cnn(keras, shape=DIGITS_SHAPE)

    # The dense layer sees 2x2x64.
    assert model.count_params() == 320 + 18_496 + 32_896 + 1_290


def test_the_optimizer_may_be_ones_own():
    assert isinstance(build_cnn(keras, "sgd").optimizer, keras.optimizers.SGD)


def test_the_data_are_endless_and_of_one_shape():
    dataset = make_dataset(3000)

    shapes = [(images.shape, labels.shape) for images, labels in dataset.take(3)]

    assert shapes == [((3000, 28, 28, 1), (3000,))] * 3


def test_every_process_makes_the_same_data():
    (images, labels), (again, labels_again) = (
        next(iter(make_dataset(8).as_numpy_iterator())) for _ in range(2)
    )

    np.testing.assert_array_equal(images, again)
    np.testing.assert_array_equal(labels, labels_again)
    assert labels.min() >= 0
    assert labels.max() < 10


def test_there_are_as_many_digits_as_scikit_learn_has_to_train_with():
    batches = list(make_digits(1000).as_numpy_iterator())

    assert [images.shape for images, _ in batches] == [
        (1000, *DIGITS_SHAPE),
        (437, *DIGITS_SHAPE),
    ]
    [again, _] = make_digits(1000).as_numpy_iterator()
    np.testing.assert_array_equal(batches[0][1], again[1])
