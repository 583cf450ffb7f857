import contextlib
import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.single import SingleCollective
from tfdist.experimental import virtual_ranks
from tfdist.experimental.virtual_ranks import Arithmetic, VirtualRankHooks, check_ranks
from tfdist.gradients.tree import TreeReducer
from tfdist.strategies import AllReduceStrategy
from tfdist.strategies.base import StepRunner
from tfdist.strategies.process_replica import ProcessReplicaExtended
from tfdist.verify.watch import check_watchable

SLOW = pytest.mark.slow
ONES = np.ones((8, 4), "float32")


class Strategy(StepRunner):
    """A process alone with four parts, and with threads as they are."""

    def __init__(self):
        collective = SingleCollective()
        reducer = TreeReducer(collective)
        hooks = VirtualRankHooks(collective, reducer, Arithmetic(4, 1))
        self._start(ProcessReplicaExtended(self, collective, reducer, hooks=hooks))


def model_with(*layers, optimizer="sgd", loss="mse", metrics=(), **options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(4)])
    model.compile(optimizer, loss, metrics=[*metrics], **options)
    return model


class Changing(keras.layers.Layer):
    """A layer that counts its calls."""

    def build(self, shape):
        self.calls = self.add_weight(name="calls", trainable=False)

    def call(self, inputs):
        self.calls.assign_add(1.0)
        return inputs


class Communicating(keras.layers.Layer):
    def call(self, inputs):
        replica = tf.distribute.get_replica_context()
        if replica is None:
            return inputs
        return inputs - replica.all_reduce("MEAN", tf.reduce_mean(inputs, 0))


class Gathering(keras.layers.Layer):
    def call(self, inputs):
        replica = tf.distribute.get_replica_context()
        if replica is None:
            return inputs
        return inputs + tf.reduce_mean(replica.all_gather(inputs, 0))


class Drawing(keras.layers.Layer):
    def call(self, inputs):
        return inputs + tf.random.normal([4])


class Stepping(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


class Masking(keras.layers.Layer):
    supports_masking = True

    def compute_mask(self, inputs, previous=None):
        return keras.ops.any(inputs > 0, axis=-1)

    def call(self, inputs):
        return inputs


class Highest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="highest")
        self.seen = self.add_variable((), "zeros", aggregation="mean", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.assign(keras.ops.max(y_pred))

    def result(self):
        return self.seen.value


def fit(model, **options):
    return model.fit(ONES, ONES, batch_size=8, verbose=0, **options)


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"virtual_ranks": 6},
            "virtual_ranks must be a power of two. Received: virtual_ranks=6. Use 8, "
            "or the largest number of processes you will use.",
        ),
        ({"virtual_ranks": 0}, "virtual_ranks must be a power of two. Received: "),
        ({"virtual_ranks": 8.0}, "virtual_ranks must be a power of two. Received: "),
        (
            {"virtual_ranks": 8, "shard_optimizer": True},
            "virtual_ranks keeps the whole optimizer on each process. Received: "
            "virtual_ranks=8 with shard_optimizer=True. Leave one of them out.",
        ),
        (
            {"virtual_ranks": 8, "compression": "fp16"},
            "virtual_ranks sends gradients as they are. Received: virtual_ranks=8 with "
            "compression='fp16'. Leave one of them out.",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        AllReduceStrategy(**arguments)


@pytest.mark.parametrize(("count", "size"), [(8, 3), (8, 6), (2, 4)])
def test_processes_that_cannot_share_the_parts_are_refused(count, size):
    with pytest.raises(
        ValueError,
        match=r"virtual_ranks must be a multiple of the number of processes, which must"
        rf" be a power of two\. Received: virtual_ranks={count} on {size} processes\. "
        rf"Start as many processes as a power of two up to {count}\.",
    ):
        check_ranks(Arithmetic(count, 1), SimpleNamespace(size=size))


def test_ranks_that_differ_are_refused():
    def exchange(name, value):
        return [value, [8, 2]]

    with pytest.raises(
        RuntimeError,
        match=r"The ranks have different virtual_ranks or numbers of intra-op threads"
        r"\. Received: \[\[8, 1\], \[8, 2\]\], by rank\. Give the same on every rank\.",
    ):
        check_ranks(Arithmetic(8, 1), SimpleNamespace(size=2, exchange=exchange))


def normalized(**options):
    return model_with(keras.layers.BatchNormalization(name="norm"), **options)


def stepping():
    model = Stepping([keras.Input((4,)), keras.layers.Dense(4)], name="stepping")
    keras.utils.set_random_seed(1)
    model.compile("sgd", "mse")
    return model


def unseeded():
    model = model_with()
    tf.random.set_seed(None)
    return model


OTHER_BITS = (
    "With virtual_ranks, a model must have the same bits on any number of processes. "
    "Received: "
)
REFUSED = {
    "a seed": (
        unseeded,
        f"{OTHER_BITS}a program without a seed. Call keras.utils.set_random_seed(1) "
        "before you make the model.",
    ),
    "a step": (
        stepping,
        f"{OTHER_BITS}a step of its own in the model 'stepping'. Use Keras's "
        "train_step, test_step and compute_metrics.",
    ),
    "normalization": (
        normalized,
        f"{OTHER_BITS}batch normalization in 'norm'. Use LayerNormalization or "
        "GroupNormalization, or freeze the layer.",
    ),
    "XLA": (
        lambda: model_with(jit_compile=True),
        f"{OTHER_BITS}jit_compile=True in the model 'sequential",
    ),
    "a metric": (
        lambda: model_with(metrics=[Highest()]),
        f"{OTHER_BITS}a metric whose variable 'highest/seen' is not a sum over rows. "
        "Leave the metric out, or give its variables aggregation='sum'.",
    ),
    "communicating": (
        lambda: model_with(Communicating()),
        "With virtual_ranks, a layer must compute each row by itself. Received: one "
        "that reduces over replicas, as synchronized normalization does. Use "
        "LayerNormalization or GroupNormalization, or leave virtual_ranks out.",
    ),
    "gathering": (
        lambda: model_with(Gathering()),
        "With virtual_ranks, a layer must compute each row by itself. Received: one ",
    ),
    "changing": (
        lambda: model_with(Changing(name="changing")),
        "With virtual_ranks, a layer must not change in a step. Received: one that "
        "assigns sequential",
    ),
    "drawing": (
        lambda: model_with(Drawing(name="drawing")),
        "With virtual_ranks, random numbers must come from keras.random or a layer of "
        "Keras. Received: an operation of tf.random in 'sequential",
    ),
    "masked": (
        lambda: model_with(Masking()),
        "With virtual_ranks, a loss must be a mean over rows. Received: a loss that "
        "divides by the sum of a mask, or of weights, over the whole batch. Use "
        "reduction='sum_over_batch_size' without a mask, or 'sum', or leave "
        "virtual_ranks out.",
    ),
}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        # It has the words of another one.
        pytest.param(*row, id=name, marks=SLOW if name == "gathering" else ())
        for name, row in REFUSED.items()
    ],
)
def test_what_parts_cannot_do_is_refused_before_a_step(make, message):
    with Strategy().scope():
        model = make()
    before = model.get_weights()
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(model)
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)


@SLOW
def test_frozen_normalization_changes_nothing_and_is_allowed():
    with Strategy().scope():
        model = normalized()
        model.get_layer("norm").trainable = False

    assert np.isfinite(fit(model).history["loss"][0])


@pytest.mark.parametrize("method", ["train_on_batch", "test_on_batch"])
def test_batches_that_are_no_global_ones_are_refused(method):
    with Strategy().scope():
        model = model_with()
    with pytest.raises(
        ValueError,
        match=r"virtual_ranks cuts global batches into parts\. Received: a batch of "
        r"train_on_batch or test_on_batch, or a dataset that is sharded already\. Call "
        r"fit or evaluate with the whole data, without an AutoShardPolicy\.",
    ):
        getattr(model, method)(ONES, ONES)


def test_a_custom_loop_is_refused():
    with pytest.raises(
        ValueError,
        match=r"virtual_ranks cuts the batches of fit and evaluate\. Received: a call "
        r"of strategy\.run in a loop of your own\. Train by fit, or leave virtual_ranks"
        r" out\.",
    ):
        Strategy().run(lambda: tf.constant(1.0))


def test_a_verification_is_refused():
    with Strategy().scope():
        model = model_with()
    with pytest.raises(
        ValueError,
        match=r"tfdist verify cannot look into the parts of a step, and compares up to "
        r"rounding\. Received: a strategy with virtual_ranks=4 and 1 intra-op thread\. "
        r"Leave virtual_ranks out while you verify\.",
    ):
        check_watchable(model)
    assert check_watchable(None) is None


# The threads.


@pytest.mark.parametrize(("chosen", "fixed"), [(0, [1, "op"]), (3, ["op"])])
def test_one_thread_is_fixed_unless_the_program_has_chosen(chosen, fixed, monkeypatch):
    found = []
    threading = SimpleNamespace(
        get_intra_op_parallelism_threads=lambda: chosen,
        set_intra_op_parallelism_threads=found.append,
    )
    options = SimpleNamespace(enable_op_determinism=lambda: found.append("op"))
    config = SimpleNamespace(threading=threading, experimental=options)
    stand_ins = {
        "tf": SimpleNamespace(config=config),
        "has_started": lambda: chosen > 0,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(virtual_ranks, name, stand_in)

    assert virtual_ranks.fix_threads() == (chosen or 1)
    assert found == fixed
    assert str(Arithmetic(4, 3)) == "virtual_ranks=4 and 3 intra-op threads"


def test_a_tensorflow_that_has_started_is_refused():
    tf.constant(1)
    with pytest.raises(
        RuntimeError,
        match=r"virtual_ranks fixes the number of intra-op threads, so the strategy "
        r"must be made before TensorFlow runs its first operation\. Received: a "
        r"TensorFlow that has already started\. Make the strategy first thing in the ",
    ):
        virtual_ranks.fix_threads()


# What is allowed.


def test_parts_of_uneven_rows_add_up_to_the_batch():
    x = np.random.default_rng(1).normal(size=(11, 4)).astype("float32")
    ended = []
    for scope in (Strategy().scope(), contextlib.nullcontext()):
        with scope:
            model = model_with(metrics=["mae"])
        # Batches of 8 and of 3 rows, for four parts.
        logs = model.fit(x, x, batch_size=8, epochs=2, verbose=0).history
        ended.append([*model.get_weights(), *logs.values()])

    for found, right in zip(*ended, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-7)


@SLOW
def test_weights_without_a_gradient_have_none():
    class Unused(keras.layers.Layer):
        def build(self, shape):
            self.unused = self.add_weight(shape=(2,), initializer="ones")

        def call(self, inputs):
            return inputs

    with Strategy().scope():
        layer = Unused()
        model = model_with(layer, optimizer=keras.optimizers.AdamW(weight_decay=0.1))
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        fit(model)

    np.testing.assert_array_equal(layer.unused, np.ones(2))


def noting(drawn):
    """Return a layer that adds the numbers that it draws in steps to a list."""

    class Noting(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator(1)

        def call(self, inputs):
            number = keras.random.uniform((), seed=self.seeds)
            if not tf.is_symbolic_tensor(number):
                drawn.append(number.numpy())
            return inputs

    return Noting()


def test_parts_draw_different_numbers_and_states_advance_once():
    drawn = []
    layer = noting(drawn)
    right = keras.random.SeedGenerator(1)
    with Strategy().scope():
        model = model_with(layer, run_eagerly=True)
        drawn.clear()
        state = layer.seeds.state.numpy()
        fit(model)

    assert len(drawn) == len(set(drawn)) == 4
    right.state.assign(state)
    assert drawn[0] == keras.random.uniform((), seed=right).numpy()
    np.testing.assert_array_equal(layer.seeds.state, right.state)
