"""TFRecord files, sound and damaged."""

import pytest
import tensorflow as tf


@pytest.fixture
def write(tmp_path):
    """Return a function that writes one file of records, and returns its path."""

    def write(records, name="file.tfrecord"):
        path = str(tmp_path / name)
        with tf.io.TFRecordWriter(path) as writer:
            for record in records:
                writer.write(record)
        return path

    return write


@pytest.fixture
def change():
    """Return a function that changes one byte of a file, or cuts it off there."""

    def change(path, offset, *, cut=False):
        with open(path, "r+b") as file:
            if cut:
                file.truncate(offset)
                return
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 1]))

    return change
