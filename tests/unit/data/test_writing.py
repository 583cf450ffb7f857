import os
import re

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data import write_tfrecords


def read(files):
    return [
        [tf.train.Example.FromString(record.numpy()) for record in dataset]
        for dataset in map(tf.data.TFRecordDataset, files)
    ]


def feature(value, path):
    [[example]] = read(write_tfrecords([{"x": value}], path))
    kind = example.features.feature["x"].WhichOneof("kind")
    return kind, list(getattr(example.features.feature["x"], kind).value)


def test_examples_go_round_the_files(tmp_path):
    files = write_tfrecords(({"x": n} for n in range(5)), tmp_path / "new" / "train", 3)

    assert [os.path.basename(file) for file in files] == [
        f"train-0000{number}-of-00003.tfrecord" for number in range(3)
    ]
    assert sorted(os.listdir(tmp_path / "new")) == [*map(os.path.basename, files)]
    found = [
        [e.features.feature["x"].int64_list.value[0] for e in f] for f in read(files)
    ]
    assert found == [[0, 3], [1, 4], [2]]


@pytest.mark.parametrize(
    ("value", "kind", "written"),
    [
        (3, "int64_list", [3]),
        (np.uint8([[1, 255], [2, 3]]), "int64_list", [1, 255, 2, 3]),
        (1.5, "float_list", [1.5]),
        ([0.5, 2], "float_list", [0.5, 2.0]),
        ("ä", "bytes_list", ["ä".encode()]),
        (b"a\0", "bytes_list", [b"a\0"]),
        ([b"a\0", b"\0"], "bytes_list", [b"a\0", b"\0"]),
        ([["a"], ["bc"]], "bytes_list", [b"a", b"bc"]),
        (np.array(["a", "bc"]), "bytes_list", [b"a", b"bc"]),
        (tf.constant([b"a\0"]), "bytes_list", [b"a\0"]),
        (tf.constant([1, 2]), "int64_list", [1, 2]),
        ([], "float_list", []),
    ],
    ids=str,
)
def test_features(tmp_path, value, kind, written):
    assert feature(value, tmp_path / "x") == (kind, written)


def test_a_name_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert write_tfrecords([], "x") == ["x-00000-of-00001.tfrecord"]
    assert os.listdir() == ["x-00000-of-00001.tfrecord"]


@pytest.mark.parametrize("value", [None, 1j, [b"a", 1]])
def test_what_no_record_can_hold_is_refused_and_leaves_no_file(tmp_path, value):
    with pytest.raises(
        TypeError,
        match=r"A feature must be a number, a string, bytes, or an array of them\. "
        rf"Received: 'x', a {type(value).__name__} of '[OcS]'\. Serialize it first, "
        + re.escape("for instance with tf.io.serialize_tensor(value).numpy()."),
    ):
        write_tfrecords([{"x": 1}, {"x": value}], tmp_path / "x", 2)
    assert os.listdir(tmp_path) == []


def test_files_are_replaced_only_by_whole_ones(tmp_path):
    [file] = write_tfrecords([b"old"], tmp_path / "x")

    def failing():
        yield b"new"
        raise KeyError("the source")

    with pytest.raises(KeyError, match="the source"):
        write_tfrecords(failing(), tmp_path / "x")
    assert list(tf.data.TFRecordDataset(file).as_numpy_iterator()) == [b"old"]


def test_no_files_are_refused(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"num_shards must be positive\. Received: num_shards=0\. It is the "
        r"number of files: a few for each process that will read them\.",
    ):
        write_tfrecords([], tmp_path / "x", 0)
