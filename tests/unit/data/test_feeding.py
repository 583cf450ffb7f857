import pytest
import tensorflow as tf

from tfdist.data.feeding import Feeding
from tfdist.data.sharding import is_rank_part


def feeding(**options):
    defaults = {"shuffle_buffer": 0, "seed": 1, "cache": False, "deterministic": True}
    return Feeding(**defaults | options)


def batches(dataset):
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


def test_examples_are_parsed_and_batched():
    dataset = feeding().batches(
        tf.data.Dataset.range(5), lambda x: 2 * x, 2, is_part=False
    )

    assert batches(dataset) == [[0, 2], [4, 6], [8]]
    assert int(dataset.cardinality()) == 3
    assert dataset.options().deterministic
    # Its thread would hold up the end of each epoch.
    assert dataset.options().autotune.enabled is False
    assert not is_rank_part(dataset)


def test_a_part_is_marked():
    dataset = feeding(deterministic=False).batches(
        tf.data.Dataset.range(5), None, 2, is_part=True
    )

    assert is_rank_part(dataset)
    assert dataset.options().deterministic is False


@pytest.mark.parametrize("cache", [False, True])
def test_epochs_are_shuffled_anew(cache):
    dataset = feeding(shuffle_buffer=9, cache=cache).batches(
        tf.data.Dataset.range(9), None, 9, is_part=False
    )
    [first], [second] = batches(dataset), batches(dataset)

    assert sorted(first) == sorted(second) == list(range(9))
    assert first != second


def test_pieces_are_shuffled_where_examples_are():
    assert feeding().piece_seed is None
    assert feeding(shuffle_buffer=1).piece_seed == 1


def test_a_negative_buffer_is_refused():
    with pytest.raises(
        ValueError,
        match=r"shuffle_buffer must not be negative\. Received: shuffle_buffer=-1\. It "
        r"is a number of examples; use 0 to leave them in order\.",
    ):
        feeding(shuffle_buffer=-1)
