import pytest
import tensorflow as tf

from tfdist.training.kept_parts import kept_part, together, with_own_part


class Distributed:
    """Stands for what TensorFlow has made of a dataset."""


def test_a_dataset_keeps_what_it_was_made_of():
    kept = with_own_part(Distributed(), lambda: "the part")

    assert kept_part(kept) == "the part"
    assert kept_part(Distributed()) is None
    assert kept_part(tf.data.Dataset.range(3)) is None


def test_batches_for_devices_are_joined_for_their_process():
    joined = together(tf.data.Dataset.range(11).batch(2), 3)

    assert [batch.numpy().tolist() for batch in joined] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10],
    ]
    # It is that of the batches before, in some versions of TensorFlow.
    assert joined.cardinality() == tf.data.UNKNOWN_CARDINALITY


def test_what_is_not_batched_is_refused():
    with pytest.raises(
        ValueError,
        match=r"A dataset that a function makes for each device must be batched last\. "
        r"Received: elements of TensorSpec.*Call dataset\.batch\(",
    ):
        together(tf.data.Dataset.range(3), 2)
