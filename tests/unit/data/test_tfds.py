import logging
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from absl import logging as absl_logging
from sklearn.datasets import load_digits

from tfdist.data.sharding import is_rank_part
from tfdist.data.tfds import read_tfds


class OfflineDigits(tfds.core.GeneratorBasedBuilder):
    """The digits of scikit-learn, numbered by their label."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(8, 8, 1)),
            "label": tfds.features.Scalar(np.int64),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, _):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        images = load_digits().images[:100, ..., np.newaxis].astype(np.uint8)
        for number, image in enumerate(images):
            yield number, {"image": image, "label": number}


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    level = absl_logging.get_verbosity()
    absl_logging.set_verbosity(logging.CRITICAL)
    tfds.disable_progress_bar()
    builder = OfflineDigits(data_dir=tmp_path_factory.mktemp("data"))
    # It is prepared here, as it is not there yet.
    read_tfds(builder, "train", 10)
    yield builder
    absl_logging.set_verbosity(level)


def labels(dataset):
    return [int(n) for _, numbers in dataset for n in numbers]


@pytest.mark.parametrize(
    ("size", "shuffle_buffer"),
    [
        pytest.param(1, 30, marks=pytest.mark.slow),
        pytest.param(2, 0, marks=pytest.mark.slow),
        (3, 30),
    ],
)
def test_each_example_is_one_ranks(builder, size, shuffle_buffer):
    parts = [
        read_tfds(
            *(builder, "train", 16),
            shuffle_buffer=shuffle_buffer,
            rank=rank,
            size=size,
        )
        for rank in range(size)
    ]

    for _ in range(2):
        assert sorted(n for part in parts for n in labels(part)) == list(range(100))
    # As many as on one process.
    assert {int(part.cardinality()) for part in parts} == {7}
    assert {is_rank_part(part) for part in parts} == {size > 1}


def test_a_split_may_be_of_parts(builder):
    split = "train[90%:]+train[:40]"
    parts = [read_tfds(builder, split, 8, rank=rank, size=3) for rank in range(3)]

    whole = read_tfds(builder, split, 8)
    assert sorted(n for part in parts for n in labels(part)) == sorted(labels(whole))
    # No rank has rows that make a step more.
    assert [len(part) for part in parts] == [6, 7, len(whole)]


@pytest.mark.parametrize("cache", [False, True])
def test_examples_are_parsed(builder, cache):
    dataset = read_tfds(
        builder, "train", 16, parse=lambda image, label: (image, -label), cache=cache
    )

    assert sorted(labels(dataset)) == list(range(-99, 1))


def test_a_rank_that_would_get_nothing_is_an_error(builder):
    with pytest.raises(
        ValueError,
        match=r"Received: 2 examples for 3 ranks, from the split 'train\[:2\]' of "
        r"offline_digits",
    ):
        read_tfds(builder, "train[:2]", 16, rank=0, size=3)


def test_data_that_another_process_has_prepared_is_read(tmp_path):
    first, late = (OfflineDigits(data_dir=tmp_path) for _ in range(2))

    for each in (first, late):
        assert sorted(labels(read_tfds(each, "train", 16))) == list(range(100))


def test_a_name_is_looked_up(builder):
    dataset = read_tfds("offline_digits", "train", 16, data_dir=builder._data_dir_root)

    assert sorted(labels(dataset)) == list(range(100))


def test_without_tensorflow_datasets_there_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(
        ImportError,
        match=r"read_tfds needs TensorFlow Datasets\. Received: an environment without "
        r"it\. Run: pip install tensorflow-datasets",
    ):
        read_tfds("mnist", "train", 16)
