import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives import FusingCollective, SingleCollective
from tfdist.gradients import HorovodReducer, weigh


class Fusing(SingleCollective, FusingCollective):
    """One of several ranks that all have the same; it notes what is sent."""

    def __init__(self, size=4):
        self._size = size
        self.checked, self.groups, self.sums = [], [], []

    @property
    def size(self):
        return self._size

    def exchange(self, name, value, *, joint=True):
        return [value] * self.size

    def check_op(self, op):
        self.checked.append(op)

    def all_reduce_as(self, tensors, op, *, name, factors=(1.0, 1.0)):
        self.groups.append((name, op, [t.dtype.name for t in tensors], factors))
        before, after = (tf.constant(f, tf.float64) for f in factors)
        scale = self.size * before * after
        return [t * tf.cast(scale, t.dtype) for t in tensors]

    def all_reduce(self, tensors, reduction="sum", *, name):
        self.sums.append((name, reduction, len(tensors)))
        return [
            tf.IndexedSlices(
                tf.concat([t.values] * self.size, 0),
                tf.concat([t.indices] * self.size, 0),
                t.dense_shape,
            )
            if isinstance(t, tf.IndexedSlices)
            else t * self.size
            for t in tensors
        ]


def reducer_on(collective=None, **options):
    return HorovodReducer(collective or Fusing(), **options)


def slices(value, rows=1):
    return tf.IndexedSlices(
        tf.fill([rows, 2], value), tf.range(rows, dtype=tf.int64), tf.constant([3, 2])
    )


def variables(*paths):
    """Return what has the paths, and the shape of `slices`."""
    alike = {"name": "kernel", "shape": (3, 2), "dtype": "float32"}
    return [SimpleNamespace(path=path, **alike) for path in paths]


def names(collective):
    return [name for name, *_ in collective.groups]


# What is sent.


def test_each_gradient_sets_out_by_itself_the_last_layers_first():
    collective = Fusing()

    found = reducer_on(collective).reduce([tf.constant([1.0]), tf.constant(2.0)], "g")

    assert names(collective) == ["g/1", "g/0"]
    assert [total.numpy().tolist() for total in found] == [[4.0], 8.0]
    assert collective.sums == []


def test_a_number_of_groups_parts_neighbours():
    collective = Fusing()

    reducer_on(collective, groups=2).reduce([tf.ones([1])] * 4, "g")

    assert [(name, len(types)) for name, _, types, _ in collective.groups] == [
        ("g/3", 2),
        ("g/1", 2),
    ]


def test_types_do_not_travel_together():
    collective = Fusing()
    gradients = [tf.ones([1]), tf.ones([1], tf.float64), tf.ones([2])]

    found = reducer_on(collective, groups=1).reduce(gradients, "g")

    assert [(name, types) for name, _, types, _ in collective.groups] == [
        ("g/2", ["float32", "float32"]),
        ("g/1", ["float64"]),
    ]
    assert [total.dtype for total in found] == [g.dtype for g in gradients]
    assert [total.numpy().tolist() for total in found] == [[4.0], [4.0], [4.0, 4.0]]


@pytest.mark.parametrize("drops_missing", [False, True])
def test_groups_are_those_of_the_paths_where_some_have_no_gradient(drops_missing):
    """An optimizer drops what has no gradient between the two calls."""
    collective = Fusing()
    reducer = reducer_on(collective, groups=[["b", "d"]])
    gradients = [None, tf.ones([1]), tf.ones([1]), tf.ones([1])]

    completed = reducer.complete(gradients, variables("a", "b", "c", "d"), "opt")
    if drops_missing:
        completed = [gradient for gradient in completed if gradient is not None]
    found = reducer.reduce(completed, "g")

    assert [len(types) for _, _, types, _ in collective.groups] == [2, 1]
    last = len(completed) - 1
    assert names(collective) == [f"g/{last}", f"g/{last - 1}"]
    assert [total is None for total in found] == [g is None for g in completed]


def test_a_group_of_variables_that_are_not_trained_is_refused():
    reducer = reducer_on(groups=[["dense/kernel", "dense/bais"]])
    both = variables("dense/kernel", "dense/bias")
    completed = reducer.complete([tf.ones([1])] * 2, both, "opt")

    with pytest.raises(
        ValueError,
        match=r"groups must name variables that are trained\. Received: 'dense/bais'\. "
        r"Did you mean 'dense/bias'\?",
    ):
        reducer.reduce(completed, "g")


def test_the_paths_of_keras_variables_are_known():
    layer = keras.layers.Dense(1, name="one")
    layer.build((None, 2))
    both = layer.trainable_variables
    reducer = reducer_on(collective := Fusing(), groups=[["one/kernel", "one/bias"]])

    reducer.reduce(reducer.complete([tf.ones(v.shape) for v in both], both, "o"), "g")

    assert [len(types) for _, _, types, _ in collective.groups] == [2]


def test_what_travels_beside_is_summed_whatever_the_op():
    collective = Fusing()
    reducer = reducer_on(collective, op="sum")

    found = reducer.reduce(
        [tf.constant([1.0])], "g", beside=[tf.constant(0.5), tf.constant([1, 2])]
    )

    assert [total.numpy().tolist() for total in found] == [[16.0], 2.0, [4, 8]]
    assert collective.sums == [("g/beside", "sum", 2)]


# What arithmetic is done.


@pytest.mark.parametrize(
    ("options", "factors", "total"),
    [
        ({}, (1.0, 1.0), 12.0),
        ({"op": "sum"}, (1.0, 1.0), 48.0),
        ({"op": "adasum"}, (1.0, 1.0), 12.0),
        # 1 / 8 of the whole gradient, which is 4 times the share; and back.
        ({"gradient_predivide_factor": 8.0}, (0.5, 2.0), 12.0),
        ({"gradient_predivide_factor": 0.5}, (8.0, 0.125), 12.0),
        ({"gradient_predivide_factor": 1.0}, (1.0, 1.0), 12.0),
    ],
)
def test_factors_are_those_of_shares(options, factors, total):
    collective = Fusing(size=4)

    found = reducer_on(collective, **options).reduce([tf.constant(3.0)], "g")

    assert collective.groups == [
        ("g/0", options.get("op", "average"), ["float32"], factors)
    ]
    assert float(found[0]) == total


@pytest.mark.parametrize(
    ("options", "each"),
    [({}, 1.0), ({"op": "sum"}, 2.0), ({"gradient_predivide_factor": 3.0}, 1.0)],
)
def test_sparse_gradients_are_gathered_and_mean_the_same_as_dense(options, each):
    collective = Fusing(size=2)

    found = reducer_on(collective, **options).reduce([slices(1.0), None], "g")

    assert collective.groups == []
    assert collective.sums == [("g/0", "sum", 1)]
    assert found[0].values.numpy().tolist() == [[each, each]] * 2
    assert found[0].indices.numpy().tolist() == [0, 0]
    assert found[1] is None


def test_sparse_gradients_may_be_made_dense():
    collective = Fusing(size=2)
    reducer = reducer_on(collective, op="sum", sparse_as_dense=True)

    completed = reducer.complete([slices(1.0)], variables("a"), "opt")
    found = reducer.reduce(completed, "g")

    assert names(collective) == ["g/0"]
    np.testing.assert_array_equal(found[0], [[4.0, 4.0], [0, 0], [0, 0]])


@pytest.mark.parametrize(
    ("op", "weights"),
    [
        ("average", [0.0, 0.25, 1.0]),
        ("sum", [0.0, 0.25, 1.0]),
        ("adasum", [0.0, 1.0, 1.0]),
    ],
)
def test_adasum_combines_whole_gradients(op, weights):
    reducer = reducer_on(op=op)

    found = [
        float(weigh([tf.constant(2.0)], reducer.weight(share))[0])
        for share in tf.constant([0.0, 0.25, 1.0], tf.float64)
    ]

    assert found == [2 * weight for weight in weights]


@pytest.mark.parametrize(
    ("op", "sent"),
    # Shares need no care for the range of float16, whole gradients do.
    [("average", 4096.0), ("adasum", 1024.0)],
)
def test_gradients_travel_small_and_within_their_range(op, sent):
    collective = Fusing(size=4)
    seen = []
    all_reduce_as = collective.all_reduce_as

    def noting(tensors, *args, **options):
        seen.extend(float(tensor) for tensor in tensors)
        return all_reduce_as(tensors, *args, **options)

    collective.all_reduce_as = noting
    reducer = reducer_on(collective, op=op, compression="fp16")

    found = reducer.reduce([tf.constant(4096.0)], "g", are_shares=True)

    assert seen == [sent]
    assert collective.groups[0][2] == ["float16"]
    assert (found[0].dtype, float(found[0])) == (tf.float32, 4 * 4096.0)


def test_adasum_refuses_sparse_gradients_by_their_path():
    reducer = reducer_on(op="adasum")
    gradients = [None, tf.ones([3, 2]), slices(1.0)]

    with pytest.raises(
        ValueError,
        match=r"op='adasum' cannot combine sparse gradients\. Received: that of 'c'\. "
        r"Use sparse_as_dense=True\.",
    ):
        reducer.complete(gradients, variables("a", "b", "c"), "opt")


# What is refused.


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"op": "mean"},
            ValueError,
            "op must be one of average, sum, adasum. Received: op='mean'. Use "
            "'average' for the weights that one process ends with.",
        ),
        (
            {"gradient_predivide_factor": 0.0},
            ValueError,
            "gradient_predivide_factor must be positive and finite. Received: "
            "gradient_predivide_factor=0.0. Use 1.0 to divide after the sum only.",
        ),
        (
            {"gradient_predivide_factor": -2.0},
            ValueError,
            "Received: gradient_predivide_factor=-2.0.",
        ),
        (
            {"gradient_predivide_factor": float("nan")},
            ValueError,
            "Received: gradient_predivide_factor=nan.",
        ),
        (
            {"gradient_predivide_factor": float("inf")},
            ValueError,
            "Received: gradient_predivide_factor=inf.",
        ),
        (
            {"gradient_predivide_factor": 2.0, "op": "sum"},
            ValueError,
            "gradient_predivide_factor goes with op='average' only. Received: "
            "gradient_predivide_factor=2.0 and op='sum'. Leave one of them out.",
        ),
        (
            {"groups": 2, "op": "adasum"},
            ValueError,
            "groups do not go with op='adasum', which combines each gradient by "
            "itself. Received: groups=2. Leave one of them out.",
        ),
        (
            {"compression": "bf16"},
            ValueError,
            "Horovod does not move bfloat16. Received: compression='bf16'. Use 'fp16', "
            "or collective='tensorflow'.",
        ),
        (
            {"compression": "fp8"},
            ValueError,
            "compression must be one of none, fp16, bf16. Received: compression='fp8'.",
        ),
        ({"groups": 0}, ValueError, "groups must be at least 1. Received: groups=0."),
        ({"groups": "a"}, TypeError, "groups must be a number, or lists of paths"),
    ],
)
def test_options_that_horovod_does_not_have_are_refused(options, error, text):
    with pytest.raises(error, match=re.escape(text)):
        reducer_on(**options)
