"""`tfdist.data.write_tfrecords`: examples written to TFRecord files."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf


def write_tfrecords(
    examples: Iterable[Mapping[str, Any] | bytes],
    path: str | os.PathLike[str],
    num_shards: int = 1,
) -> list[str]:
    """Write examples to TFRecord files in rotation, one by one.

    Files appear under their final names only once all are complete. In a job, call this
    on the chief only.

    Args:
        examples: Each a mapping of features by name, or a serialized record. A feature
            is a number, a string, bytes, or an array of them, which is flattened.
            Integers and booleans become int64, other numbers float32. Encode images,
            for instance with `tf.io.encode_jpeg(image).numpy()`, to save space.
        path: The prefix of the file names, such as "data/train" for
            "data/train-00000-of-00004.tfrecord". Missing folders are created.
        num_shards: Number of files. Default 1.

    Returns:
        The file names.

    Raises:
        TypeError: If a record cannot hold a feature.
        ValueError: If `num_shards` is not positive.

    Example:
        >>> import tempfile, tfdist
        >>> examples = [{"x": [1.5, 2.5], "label": 1}, {"x": [0.0, 0.5], "label": 0}]
        >>> folder = tempfile.mkdtemp()
        >>> files = tfdist.data.write_tfrecords(examples, f"{folder}/train", 2)
        >>> [file.removeprefix(folder) for file in files]
        ['/train-00000-of-00002.tfrecord', '/train-00001-of-00002.tfrecord']
    """
    if num_shards < 1:
        raise ValueError(
            "num_shards must be positive. Received: "
            f"num_shards={num_shards}. It is the number of files: a few for each "
            "process that will read them."
        )
    begin = os.fspath(path)
    names = [
        f"{begin}-{number:05}-of-{num_shards:05}.tfrecord"
        for number in range(num_shards)
    ]
    tf.io.gfile.makedirs(os.path.dirname(begin) or ".")
    unfinished = [f"{name}.unfinished-{os.getpid()}" for name in names]
    try:
        with contextlib.ExitStack() as stack:
            writers = [
                stack.enter_context(tf.io.TFRecordWriter(name)) for name in unfinished
            ]
            for number, example in enumerate(examples):
                writers[number % num_shards].write(_serialized(example))
        for old, new in zip(unfinished, names, strict=True):
            tf.io.gfile.rename(old, new, overwrite=True)
    finally:
        for name in filter(tf.io.gfile.exists, unfinished):
            tf.io.gfile.remove(name)
    return names


def _serialized(example: Mapping[str, Any] | bytes) -> bytes:
    """Return the record of an example."""
    if isinstance(example, bytes):
        return example
    features = {name: _feature(name, value) for name, value in example.items()}
    proto = tf.train.Example(features=tf.train.Features(feature=features))
    return bytes(proto.SerializeToString())


def _feature(name: str, value: Any) -> Any:
    """Convert a value to the feature list of its type."""
    array = np.asarray(value)
    kind = array.dtype.kind
    if kind in "biu":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=array.ravel()))
    if kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=array.ravel()))
    # A NumPy array of bytes would strip trailing zeros.
    texts = np.asarray(value, object).ravel()
    if kind in "OSU" and all(isinstance(text, bytes | str) for text in texts):
        encoded = [text.encode() if isinstance(text, str) else text for text in texts]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))
    raise TypeError(
        "A feature must be a number, a string, bytes, or an array of them. Received: "
        f"{name!r}, a {type(value).__name__} of {kind!r}. Serialize it first, for "
        "instance with tf.io.serialize_tensor(value).numpy()."
    )
