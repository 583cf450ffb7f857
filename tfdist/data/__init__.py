"""Input of the ranks: sharding, and a fast pipeline for TFRecord files."""

from tfdist.data.sharding import shard
from tfdist.data.tfds import read_tfds
from tfdist.data.tfrecord import tfrecord_dataset, write_tfrecords

__all__ = ["read_tfds", "shard", "tfrecord_dataset", "write_tfrecords"]
