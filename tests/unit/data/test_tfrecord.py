"""TFRecord files: every example once, shuffles, and damaged files."""

import gzip
import re

import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfdist.data import tfrecord_dataset
from tfdist.data.pipeline import part_of
from tfdist.data.sharding import is_rank_part


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


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 9).flatmap(
        lambda size: st.tuples(
            st.integers(size, 500), st.integers(size, 90), st.just(size)
        )
    )
)
def test_parts_are_all_examples_in_as_many_steps_as_one_process_has(numbers):
    examples, batch, size = numbers
    parts = [part_of(examples, batch, rank, size) for rank in range(size)]

    assert [each for part in parts for each in part] == list(range(examples))
    assert min(map(len, parts)) > 0
    shares = [len(part_of(batch, batch, rank, size)) for rank in range(size)]
    steps = [-(-len(p) // own) for p, own in zip(parts, shares, strict=True)]
    assert max(steps) == -(-examples // batch)
    assert min(steps) >= examples // batch


@pytest.mark.parametrize(("count", "size"), [(1, 5), (40, 3)])
@settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
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
    assert dataset.options().deterministic
    # Its thread would delay the end of each epoch.
    assert dataset.options().autotune.enabled is False


def test_a_pattern_of_files_that_only_tensorflow_can_open(write, tmp_path):
    for number in range(3):
        write(encoded([number]), f"train-{number}")
    write(encoded([7]), "test-0")

    dataset = tfrecord_dataset(f"file://{tmp_path}/train-*", parse, 4)

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


def test_a_cache_parses_once_in_graph_mode_and_still_shuffles(ten):
    calls, eager = [], []

    def counted(record):
        def count(number):
            calls.append(int(number))
            return number

        eager.append(tf.executing_eagerly())
        return tf.ensure_shape(tf.numpy_function(count, [parse(record)], tf.int64), [])

    dataset = tfrecord_dataset(ten, counted, 4, shuffle_buffer=10, cache=True)
    first, second = rows(dataset), rows(dataset)

    assert sorted(first) == sorted(second) == sorted(calls) == list(range(10))
    assert first != second
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
    with pytest.raises(FileNotFoundError, match="nowhere"):
        tfrecord_dataset(["/nowhere"], parse, 4)


@pytest.mark.parametrize(
    ("batch_size", "options", "message"),
    [
        (
            4,
            {"size": 3},
            r"Every rank must get at least one example\. Received: 2 examples for 3 "
            r"ranks, from 1 files: .*\. Start fewer processes, or see whether all "
            r"files are there\.",
        ),
        (
            2,
            {"size": 3},
            r"global_batch_size must be at least the number of ranks\. Received: "
            r"global_batch_size=2 for 3 ranks\. It is what all ranks together take in "
            r"a step: multiply what one takes by tfdist\.size\(\)\.",
        ),
        (
            4,
            {"size": 1, "shuffle_buffer": -1},
            r"shuffle_buffer must not be negative\. Received: shuffle_buffer=-1\. It "
            r"is a number of examples; use 0 to leave them in order\.",
        ),
    ],
)
def test_options_that_leave_a_rank_nothing(write, batch_size, options, message):
    path = write(encoded(range(2)))
    for rank in range(options["size"]):
        with pytest.raises(ValueError, match=message):
            tfrecord_dataset(path, parse, batch_size, rank=rank, **options)


# Records of 17 bytes: record 5 begins at byte 85.
@pytest.mark.parametrize(
    ("offset", "cut"), [(100, True), (88, True), (85 + 6, False)], ids=str
)
def test_a_truncated_file_is_an_early_error_on_every_rank(ten, change, offset, cut):
    change(ten, offset, cut=cut)

    for rank in range(2):
        with pytest.raises(
            ValueError,
            match=r"A TFRecord file must hold whole, uncompressed records\. Received: "
            r"'.*file\.tfrecord', whose record 5 at byte offset 85 is truncated or "
            r"corrupt\. Write or copy the file again\.",
        ):
            tfrecord_dataset(ten, parse, 4, rank=rank, size=2)


def test_a_compressed_file_is_an_early_error(ten, tmp_path):
    packed = tmp_path / "packed"
    with open(ten, "rb") as file:
        packed.write_bytes(gzip.compress(file.read()))

    with pytest.raises(ValueError, match="must hold whole, uncompressed records"):
        tfrecord_dataset([packed], parse, 4)


def test_corrupt_data_is_an_error_of_the_rank_that_reads_it(ten, change):
    change(ten, 17 * 7 + 12)
    options = {"shuffle_buffer": 0, "size": 2}
    sound, corrupt = (
        tfrecord_dataset(ten, parse, 4, rank=rank, **options) for rank in range(2)
    )

    assert sorted(rows(sound)) == [0, 1, 2, 3, 4]
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"whole records with their checksums\. Received:\] "
        rf"\[{re.escape(ten)}\] \[Write or copy the file again\.\]",
    ):
        list(corrupt)
