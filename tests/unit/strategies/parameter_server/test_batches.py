import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.batches import (
    as_tensors,
    count_rows,
    has_known_ranks,
    spec_of,
    without_missing,
)

RAGGED = tf.ragged.constant([[1, 2], [3]])
SPARSE = tf.sparse.from_dense([[0.0, 1.0]])

SPEC_OF_NONE = tf.data.Dataset.from_tensors((0, None)).element_spec[1]


def test_arrays_become_tensors_and_nothing_else_changes():
    missing = tf.experimental.Optional.empty(tf.TensorSpec(()))
    batch = as_tensors((np.ones((2, 3), "float32"), {"r": RAGGED, "s": SPARSE}, None))

    assert batch[0].dtype == tf.float32
    assert batch[1]["r"] is RAGGED
    assert batch[1]["s"] is SPARSE
    assert batch[2] is None
    assert as_tensors([1.5, missing])[1] is None


@pytest.mark.parametrize(
    ("leaf", "spec"),
    [
        (tf.ones((4, 3)), tf.TensorSpec((None, 3))),
        (tf.constant("text"), tf.TensorSpec((), tf.string)),
        (RAGGED, tf.RaggedTensorSpec((None, None), tf.int32, 1, tf.int64)),
        (SPARSE, tf.SparseTensorSpec((None, 2))),
        (None, None),
    ],
)
def test_the_number_of_rows_is_left_open(leaf, spec):
    assert spec_of(leaf) == spec


def test_batches_of_other_lengths_are_alike_and_of_other_widths_are_not():
    one, longer, wider = ((tf.ones((n, m)), None) for n, m in ((2, 3), (5, 3), (2, 4)))

    assert str(spec_of(one)) == str(spec_of(longer))
    assert str(spec_of(one)) != str(spec_of(wider))


@pytest.mark.parametrize(
    "leaf", [tf.ones((4, 3)), tf.constant("text"), RAGGED, SPARSE, None]
)
def test_the_spec_of_a_spec_is_that_of_its_batches(leaf):
    spec = None if leaf is None else tf.type_spec_from_value(leaf)

    assert spec_of(spec) == spec_of(leaf)
    assert spec_of((tf.OptionalSpec(tf.TensorSpec(())), SPEC_OF_NONE)) == (
        None,
        None,
    )


@pytest.mark.parametrize(
    "batch",
    [
        tf.ones((2, 3)),
        (None, {"a": tf.constant(1), "b": tf.ones(2)}),
        RAGGED,
        (tf.constant(5), tf.sparse.from_dense([[1.0], [0.0]])),
        tf.sparse.from_dense([[0.0], [0.0]]),
    ],
)
def test_rows_are_those_of_the_first_tensor_that_has_any(batch):
    assert count_rows(batch) == 2


def test_a_batch_without_rows_is_refused():
    with pytest.raises(ValueError, match="must hold at least one tensor with rows"):
        count_rows((tf.constant(1), None))


def test_a_batch_is_cut_where_parts_are_missing():
    x, y = tf.ones(3), tf.ones(3)

    assert without_missing((x, y, None)) == (x, y)
    assert without_missing((x, None, None)) is x
    assert without_missing((x,)) is x
    assert without_missing({"a": x}) == {"a": x}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (tf.TensorSpec((None, None)), True),
        (tf.TensorSpec(None), False),
        ((tf.TensorSpec(()), {"a": tf.TensorSpec(None)}), False),
        ((tf.TensorSpec(()), None, SPEC_OF_NONE), True),
        (tf.OptionalSpec(tf.TensorSpec(None)), True),
        (tf.RaggedTensorSpec((None, None)), True),
        (tf.SparseTensorSpec(None), False),
    ],
)
def test_some_specs_tell_the_dimensions(spec, expected):
    assert has_known_ranks(spec) is expected
