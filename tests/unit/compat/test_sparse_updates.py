"""Updates by sparse gradients as several GPUs do them; a flag stands for the GPUs."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat import sparse_updates

SLICES = tf.IndexedSlices(
    tf.constant([[1.0], [2.0], [4.0]]), tf.constant([3, 1, 3]), tf.constant([5, 1])
)


def test_slices_of_an_index_become_one():
    total = sparse_updates.add_slices(SLICES)

    assert total.indices.numpy().tolist() == [3, 1]
    assert total.values.numpy().tolist() == [[5.0], [2.0]]


@pytest.mark.parametrize("assign", ["assign_add", "assign_sub"])
def test_an_optimizer_of_copies_assigns_each_row_once(assign, monkeypatch):
    optimizer = keras.optimizers.SGD()
    variable = keras.Variable(np.ones((5, 1)), dtype="float32")
    assigned = []
    monkeypatch.setattr(
        sparse_updates, "has_copies_on_gpus", lambda owner: owner is optimizer
    )

    def original(self, variable, value):
        assigned.append(value.indices.numpy().tolist())
        getattr(variable.value, assign.replace("assign", "scatter"))(value)

    sparse_updates.assign_each_once(original, optimizer, variable, SLICES)

    sign = 1 if assign == "assign_add" else -1
    assert assigned == [[3, 1]]
    assert variable.numpy().ravel().tolist() == [1, 1 + 2 * sign, 1, 1 + 5 * sign, 1]


@pytest.mark.parametrize(
    ("gpus", "before", "after"),
    [([], None, None), (["a GPU"], None, "1"), (["a GPU"], "0", "0")],
)
def test_segments_are_summed_in_order_on_gpus(gpus, before, after, monkeypatch):
    name = "TF_USE_DETERMINISTIC_SEGMENT_REDUCTIONS"
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    # Set first, so that it is put back.
    monkeypatch.setenv(name, before or "")
    if before is None:
        monkeypatch.delenv(name)
    sparse_updates.sum_segments_in_order()

    assert os.environ.get(name) == after


def test_xla_leaves_sparse_updates_of_copies_alone(monkeypatch):
    monkeypatch.setattr(sparse_updates, "has_copies_on_gpus", lambda owner: True)

    @tf.function(autograph=False)
    def update(values):
        with tf.xla.experimental.jit_scope():
            gradient = tf.IndexedSlices(values, tf.constant([0, 1, 0]))
            with sparse_updates.without_xla(None, gradient):
                inside = tf.identity(values)
            with sparse_updates.without_xla(None, values):
                dense = tf.identity(values)
        return inside, dense

    inside, dense = update.get_concrete_function(SLICES.values).outputs
    compiled = [
        tensor.op.inputs[0].op.get_attr("_XlaCompile") for tensor in (inside, dense)
    ]
    assert compiled == [False, True]
