"""Images as they are written, and as they come back."""

import tensorflow as tf

from tfdist.benchmarks.input_files import parser, write_images


def test_images_come_back_smaller(tmp_path):
    files = write_images(str(tmp_path), 10, 64)

    examples = list(tf.data.TFRecordDataset(files).map(parser(64)))

    assert len(files) == 8
    assert sorted(int(label) for _, label in examples) == list(range(10))
    assert {image.shape.as_list() == [56, 56, 3] for image, _ in examples} == {True}
    assert {image.dtype for image, _ in examples} == {tf.uint8}
    # They are not plain.
    assert all(len(set(image.numpy().ravel())) > 50 for image, _ in examples)
