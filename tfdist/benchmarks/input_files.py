"""The files of the benchmark of input: images as JPEG, a little like photographs."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfdist.data import write_tfrecords

_Parse = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]

_FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}
_CLASSES = 10
_FILES = 8


def write_images(folder: str, examples: int, image_size: int) -> list[str]:
    """Write images into TFRecord files.

    Args:
        folder: Where to.
        examples: How many images.
        image_size: Their height and width.

    Returns:
        The files.
    """
    draw = np.random.default_rng(1)

    def example(number: int) -> dict[str, object]:
        # Large soft areas and a little grain: neither as small as a plain one, nor as
        # large as noise.
        areas = draw.uniform(0, 255, (8, 8, 3))
        soft = tf.image.resize(areas, (image_size, image_size), "bicubic").numpy()
        pixels = soft + draw.normal(0, 8, soft.shape)
        image = np.clip(pixels, 0, 255).astype(np.uint8)
        jpeg = tf.io.encode_jpeg(image, quality=90).numpy()
        return {"image": jpeg, "label": number % _CLASSES}

    return write_tfrecords(map(example, range(examples)), f"{folder}/images", _FILES)


def parser(image_size: int) -> _Parse:
    """Return what decodes a record to seven eighths of its height and width.

    Args:
        image_size: The height and width of the images.
    """
    own = image_size * 7 // 8

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = tf.io.parse_single_example(record, _FEATURES)
        image = tf.io.decode_jpeg(example["image"], channels=3)
        image = tf.cast(tf.image.resize(image, (own, own)), tf.uint8)
        return image, example["label"]

    return parse
