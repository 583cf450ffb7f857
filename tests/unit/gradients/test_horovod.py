import re
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.collectives.base import FusingCollective
from tfdist.collectives.single import SingleCollective
from tfdist.compat.keras.hooks import GradientPlan
from tfdist.gradients.horovod import HorovodReducer, check_horovod_options


class Fusing(SingleCollective, FusingCollective):
    """One of several ranks that all have the same; it notes what is sent."""

    def __init__(self, size=4):
        self._size = size
        self.groups, self.sums = [], []

    @property
    def size(self):
        return self._size

    def exchange(self, name, value, *, joint=True):
        return [value] * self.size

    def check_op(self, op):
        pass

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
        tf.fill([rows, 2], value), tf.zeros(rows, tf.int64), tf.constant([3, 2])
    )


def variables(*paths):
    """Return what has the paths, and the shape of `slices`."""
    alike = {"name": "kernel", "shape": (3, 2), "dtype": "float32"}
    return [SimpleNamespace(path=path, **alike) for path in paths]


def test_groups_of_one_type_are_sent_the_last_layers_first():
    collective = Fusing()
    gradients = [tf.ones([1]), tf.ones([1]), tf.ones([1], tf.float64), tf.ones([2])]

    found = reducer_on(collective, groups=2).reduce(GradientPlan(gradients), "g")

    assert [types for _, _, types, _ in collective.groups] == [
        ["float32"],
        ["float64"],
        ["float32", "float32"],
    ]
    assert len({name for name, *_ in collective.groups}) == 3
    assert [total.dtype for total in found] == [g.dtype for g in gradients]
    assert [total.numpy().tolist() for total in found] == [[4.0]] * 3 + [[4.0, 4.0]]


@pytest.mark.parametrize("drops_missing", [False, True])
def test_groups_are_those_of_the_paths_where_some_have_no_gradient(drops_missing):
    """An optimizer drops what has no gradient between the two calls."""
    collective = Fusing()
    reducer = reducer_on(collective, groups=[["b", "e"]])
    gradients = [None, tf.ones([1]), tf.ones([1]), slices(1.0, rows=2), tf.ones([1])]

    plan = reducer.complete(gradients, variables(*"abcde"), "opt")
    if drops_missing:
        plan = GradientPlan(plan.gradients[1:], plan.variables[1:])
    found = reducer.reduce(plan, "g")

    assert [len(types) for _, _, types, _ in collective.groups] == [2, 1]
    assert len(collective.sums) == 1
    assert [total is None for total in found] == [g is None for g in plan.gradients]


def test_a_group_of_variables_that_are_not_trained_is_refused():
    reducer = reducer_on(groups=[["dense/kernel", "dense/bais"]])
    with pytest.raises(
        ValueError,
        match=r"groups must name variables that are trained\. Received: 'dense/bais'\. "
        r"There are: \['dense/kernel', 'dense/bias'\]\.",
    ):
        reducer.complete(
            [tf.ones([1])] * 2, variables("dense/kernel", "dense/bias"), "opt"
        )


@pytest.mark.parametrize(
    ("options", "factors", "total"),
    [
        ({}, (1.0, 1.0), 12.0),
        ({"op": "sum"}, (1.0, 1.0), 48.0),
        ({"op": "adasum"}, (1.0, 1.0), 12.0),
        # 1 / 8 of the whole gradient, which is 4 times the share; and back.
        ({"gradient_predivide_factor": 8.0}, (0.5, 2.0), 12.0),
        ({"gradient_predivide_factor": 0.5}, (8.0, 0.125), 12.0),
    ],
)
def test_factors_are_those_of_shares(options, factors, total):
    collective = Fusing(size=4)

    found, beside = reducer_on(collective, **options).reduce(
        GradientPlan([tf.constant(3.0)]), "g", beside=[tf.constant([1, 2])]
    )

    [(_, *sent)] = collective.groups
    assert sent == [options.get("op", "average"), ["float32"], factors]
    assert float(found) == total
    # Other tensors are summed whatever the op.
    assert beside.numpy().tolist() == [4, 8]
    assert collective.sums == [("g/beside", "sum", 1)]


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

    plan = GradientPlan([tf.constant(4096.0)], are_shares=True)
    found = reducer.reduce(plan, "g")

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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"op": "mean"},
            "op must be one of average, sum, adasum. Received: op='mean'. Use "
            "'average' for the weights that one process ends with.",
        ),
        (
            {"gradient_predivide_factor": float("nan")},
            "gradient_predivide_factor must be positive and finite. Received: "
            "gradient_predivide_factor=nan. Use 1.0 to divide after the sum only.",
        ),
        (
            {"gradient_predivide_factor": 2.0, "op": "sum"},
            "gradient_predivide_factor goes with op='average' only. Received: "
            "gradient_predivide_factor=2.0 and op='sum'. Leave one of them out.",
        ),
        (
            {"groups": 2, "op": "adasum"},
            "groups do not go with op='adasum', which combines each gradient by "
            "itself. Received: groups=2. Leave one of them out.",
        ),
        (
            {"compression": "bf16"},
            "Horovod has no compression but 'fp16'. Received: compression='bf16'. "
            "Use 'fp16', or collective='tensorflow'.",
        ),
        ({"groups": 0}, "groups must be a positive number, or lists of paths"),
    ],
)
def test_options_that_horovod_does_not_have_are_refused(options, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        check_horovod_options(**options)


def test_for_adasum_each_rank_with_rows_counts_alike():
    reducer = reducer_on(op="adasum")

    assert [float(reducer.weight(share)) for share in (0.0, 0.25, 1.0)] == [0, 1, 1]
