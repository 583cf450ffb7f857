import re

import numpy as np
import pytest
import tensorflow as tf
from absl import logging
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfdist.data.sharding import is_rank_part
from tfdist.data.tfrecord import tfrecord_dataset


def parse(record):
    return tf.strings.to_number(record, tf.int64)


def encoded(numbers):
    return [b"%d" % number for number in numbers]


def batches(dataset):
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


def rows(dataset):
    return [row for batch in batches(dataset) for row in batch]


@pytest.fixture
def ten(write):
    return write(encoded(range(10)))


@pytest.fixture
def logged(monkeypatch):
    lines = []
    monkeypatch.setattr(
        logging, "warning", lambda text, *values: lines.append(text % values)
    )
    return lines


@pytest.mark.parametrize("count", [1, 2, 7, 64])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    numbers=st.tuples(st.integers(5, 300), st.integers(5, 64)),
    options=st.fixed_dictionaries(
        {
            "shuffle_buffer": st.sampled_from([0, 7]),
            "cache": st.booleans(),
            "deterministic": st.booleans(),
        }
    ),
    draw=st.randoms(use_true_random=False),
)
def test_each_example_is_one_ranks_in_each_epoch(
    write, size, count, options, numbers, draw
):
    examples, batch_size = numbers
    # Files of any length, also without a record.
    cuts = sorted(draw.choices(range(examples + 1), k=count - 1))
    edges = zip([0, *cuts], [*cuts, examples], strict=True)
    paths = [
        write(encoded(range(*edge)), f"{number:03}")
        for number, edge in enumerate(edges)
    ]
    draw.shuffle(paths)

    parts = [
        tfrecord_dataset(paths, parse, batch_size, rank=rank, size=size, **options)
        for rank in range(size)
    ]

    assert max(int(part.cardinality()) for part in parts) == -(-examples // batch_size)
    for _ in range(2):
        epoch = [batches(part) for part in parts]
        found = [row for part in epoch for batch in part for row in batch]
        assert sorted(found) == list(range(examples))
        assert [*map(len, epoch)] == [int(part.cardinality()) for part in parts]
        firsts = [len(batch) for part in epoch for batch in part[:1]]
        assert sum(firsts) == min(batch_size, examples)


def test_in_order_examples_are_as_in_the_sorted_files(write):
    paths = [write(encoded(r), n) for n, r in (("b", range(4, 9)), ("a", range(4)))]

    dataset = tfrecord_dataset(paths, parse, 4, deterministic=True)

    assert batches(dataset) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert not is_rank_part(dataset)


def test_a_pattern_names_files(write, tmp_path):
    for number in range(3):
        write(encoded([number]), f"train-{number}")
    write(encoded([7]), "test-0")

    dataset = tfrecord_dataset(f"{tmp_path}/train-*", parse, 4)

    assert sorted(rows(dataset)) == [0, 1, 2]


def test_epochs_differ_and_runs_do_not(ten):
    def epochs(seed):
        options = {"shuffle_buffer": 10, "seed": seed, "deterministic": True}
        dataset = tfrecord_dataset(ten, parse, 4, **options)
        return rows(dataset), rows(dataset)

    first, second = epochs(1)

    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert epochs(1) == (first, second)
    assert epochs(2) != (first, second)


def test_a_cache_parses_once_and_still_shuffles(ten):
    calls = []

    def counted(record):
        def count(number):
            calls.append(int(number))
            return number

        return tf.ensure_shape(tf.numpy_function(count, [parse(record)], tf.int64), [])

    dataset = tfrecord_dataset(ten, counted, 4, shuffle_buffer=10, cache=True)
    first, second = rows(dataset), rows(dataset)

    assert sorted(first) == sorted(second) == sorted(calls) == list(range(10))
    assert first != second


def test_a_ranks_part_stays_one_when_it_is_mapped(ten):
    part = tfrecord_dataset(ten, parse, 4, rank=1, size=2).map(lambda x: 2 * x)

    assert is_rank_part(part)
    assert sorted(rows(part)) == [10, 12, 14, 16, 18]


def test_nothing_is_parsed_by_python_in_eager_mode(ten):
    eager = []
    list(tfrecord_dataset(ten, lambda r: eager.append(tf.executing_eagerly()) or r, 4))

    assert eager == [False]


def test_no_files_are_an_error(tmp_path):
    for files in (f"{tmp_path}/*.tfrecord", []):
        with pytest.raises(
            FileNotFoundError,
            match=r"files must name at least one file\. Received: files="
            rf"{re.escape(repr(files))}, which names none from '.*'\. See whether the "
            r"pattern is right, and the folder there on this host\.",
        ):
            tfrecord_dataset(files, parse, 4)


def test_a_rank_that_would_get_nothing_is_an_error_on_all(write):
    path = write(encoded(range(2)))
    for rank in range(3):
        with pytest.raises(
            ValueError, match="Received: 2 examples for 3 ranks, from 1"
        ):
            tfrecord_dataset(path, parse, 4, rank=rank, size=3)
        with pytest.raises(ValueError, match="global_batch_size=2 for 3 ranks"):
            tfrecord_dataset(path, parse, 2, rank=rank, size=3)


def test_a_negative_buffer_is_an_error(ten):
    with pytest.raises(ValueError, match="Received: shuffle_buffer=-1"):
        tfrecord_dataset(ten, parse, 4, shuffle_buffer=-1)


def test_an_unknown_word_is_an_error(ten):
    with pytest.raises(
        ValueError,
        match=r'on_corrupt must be "raise", "skip", or a function\. Received: '
        r"on_corrupt='ignore'\. Use the function to count: found = \[\], "
        r"on_corrupt=found\.append\.",
    ):
        tfrecord_dataset(ten, parse, 4, on_corrupt="ignore")


def test_a_truncated_file_is_an_early_error_on_every_rank(ten, change):
    change(ten, 100, cut=True)

    for rank in range(2):
        with pytest.raises(ValueError, match=r"file.tfrecord', whose record 5 at byte"):
            tfrecord_dataset(ten, parse, 4, rank=rank, size=2)


def test_corrupt_data_is_an_error_when_it_is_read(ten, change):
    change(ten, 17 * 7 + 12)
    dataset = tfrecord_dataset(ten, parse, 4)

    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"file.tfrecord', whose record 7 at byte offset 119 is corrupt",
    ):
        list(dataset)


@pytest.mark.parametrize("shuffle_buffer", [0, 10])
@pytest.mark.parametrize("size", [1, 2])
def test_what_is_damaged_is_skipped_told_and_counted(
    write, change, logged, shuffle_buffer, size
):
    paths = [write(encoded(range(10 * n, 10 * n + 10)), f"{n}") for n in range(3)]
    offsets = [0]
    for number in range(29):
        offsets.append(
            0 if number % 10 == 9 else offsets[-1] + 16 + len(b"%d" % number)
        )
    change(paths[0], offsets[4] + 12)
    change(paths[1], offsets[13])
    change(paths[2], offsets[28] + 3, cut=True)
    found = []

    parts = [
        tfrecord_dataset(
            *(paths, parse, 4),
            shuffle_buffer=shuffle_buffer,
            on_corrupt=found.append,
            rank=rank,
            size=size,
        )
        for rank in range(size)
    ]

    kept = sorted(row for part in parts for row in rows(part))
    assert kept == [n for n in range(28) if n != 4 and not 13 <= n < 20]
    assert sorted(found) == [
        f"{paths[0]!r}, whose record 4 at byte offset {offsets[4]} is corrupt: its "
        "data does not match the checksum of it",
        f"{paths[1]!r}, whose record 3 at byte offset {offsets[13]} is corrupt: its "
        "length does not match the checksum of it",
        f"{paths[2]!r}, whose record 8 at byte offset {offsets[28]} is truncated: the "
        f"file ends after {offsets[28] + 3} bytes, not {offsets[28] + 12} or more",
    ]
    assert [line for line in logged if line.startswith("skipped: ")] == [
        f"skipped: {text}" for text in found
    ]
    assert logged[-1].endswith(" damaged places of TFRecord files")


def test_to_skip_is_to_log(ten, change, logged):
    change(ten, 12)

    assert len(rows(tfrecord_dataset(ten, parse, 4, on_corrupt="skip"))) == 9
    assert logged[-1] == "skipped 1 damaged places of TFRecord files"


def test_a_part_that_is_damaged_as_a_whole_is_an_error(ten, change):
    for record in range(10):
        change(ten, 17 * record + 12)

    with pytest.raises(ValueError, match="0 examples for 1 ranks, from rank 0's part"):
        tfrecord_dataset(ten, parse, 4, on_corrupt="skip")


def test_1001_examples_on_three_ranks(write):
    paths = [write(encoded(range(n, 1001, 4)), f"{n}") for n in range(4)]
    parts = [tfrecord_dataset(paths, parse, 64, rank=r, size=3) for r in range(3)]

    assert [int(part.cardinality()) for part in parts] == [16, 16, 16]
    lengths = np.sum([[*map(len, batches(part))] for part in parts], axis=0)
    assert lengths.tolist() == [64] * 15 + [41]
