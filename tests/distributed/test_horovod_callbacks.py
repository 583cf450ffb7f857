"""Horovod's callbacks on two ranks that Horovod's runner starts, in real `fit` calls.

One job makes all checks, because to start one takes longer than they do.
"""

import keras
import numpy as np
import pytest
from horovod_jobs import run

pytestmark = pytest.mark.requires("horovodrun")

STEPS = 4


@pytest.fixture(scope="module")
def found(asked):
    """What each rank has found in each check, by rank."""
    cases = [case for case in STARTS if case in asked]
    return run(make_all_checks, args=(cases,), timeout_seconds=1200)


def make_all_checks(cases):
    import tfdist.horovod as hvd

    hvd.init()
    return {
        "start": {case: train_from_one_start(STARTS[case]) for case in cases},
        "loaded": {case: train_what_one_rank_has_loaded(*case) for case in LOADED},
        "head": train_a_layer_that_only_training_calls(),
        "local": keep_local_variables(),
        "different": broadcast_different_models(),
        "average": average_metrics(),
    }


def model_of(rank, *, is_built=True, **compile_options):
    """Return a model of which each rank begins with its own weights."""
    import tfdist.horovod as hvd

    keras.utils.set_random_seed(rank + 1)
    layers = [
        keras.layers.Dense(3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers] if is_built else layers)
    optimizer = keras.optimizers.SGD(0.01 * (rank + 1), momentum=0.9)
    model.compile(hvd.DistributedOptimizer(optimizer), "mse", **compile_options)
    return model


def data_of(rank, size=STEPS * 8):
    """Return this rank's own rows."""
    generator = np.random.default_rng(rank)
    x = generator.normal(size=(size, 4)).astype("float32")
    return x, x[:, :1]


# Whether the steps of a model that is not built before `fit` run eagerly.
STARTS = {"not built": False, "not built, eager": True}


class StartRecorder(keras.callbacks.Callback):
    """Notes the variables before the second step and when the training has ended."""

    def on_train_begin(self, logs=None):
        self.after = {}

    def on_train_batch_end(self, batch, logs=None):
        self.after[batch] = values_of(self.model)


def values_of(model):
    trainable = [variable.numpy() for variable in model.trainable_variables]
    optimizer = [variable.numpy() for variable in model.optimizer.variables]
    return [value.tolist() for value in (*trainable, *optimizer)]


def train_from_one_start(run_eagerly):
    import tfdist.horovod as hvd

    rank = hvd.rank()
    model = model_of(rank, is_built=False, run_eagerly=run_eagerly)
    recorder = StartRecorder()
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
    first, second = [], []
    for found in (first, second):
        # One rank has changed its weights between the two.
        if model.built and rank == 1:
            model.set_weights([value + 1 for value in model.get_weights()])
        options = {"batch_size": 8, "verbose": 0, "callbacks": [broadcast, recorder]}
        model.fit(*data_of(rank), **options)
        found.extend([recorder.after[0], recorder.after[STEPS - 1]])
    seed_states = [v.numpy().tolist() for v in model.variables if "seed" in v.path]
    return {"values": [first, second], "seeds": seed_states}


@pytest.mark.parametrize(
    "case",
    [
        "not built",
        pytest.param("not built, eager", marks=pytest.mark.slow),
    ],
)
def test_all_ranks_begin_with_the_values_of_one(found, case):
    one, other = (rank["start"][case] for rank in found)

    assert one["values"] == other["values"]
    # Rank 1's learning rate is among them.
    assert any(value == pytest.approx(0.02) for value in one["values"][0][0])
    # Dropout differs.
    assert one["seeds"] != other["seeds"]
    assert len(one["seeds"]) == 1


# Who broadcasts, and whether another callback loads after it, as training begins.
LOADED = [("hvd", False), ("hvd", True), ("tfdist", True)]


def train_what_one_rank_has_loaded(whose, is_late):
    import tfdist.horovod as hvd
    from tfdist.callbacks import BroadcastVariables

    rank = hvd.rank()
    model = model_of(rank, is_built=is_late or rank == 0)

    def load(logs=None):
        # A checkpoint gives rank 0 a model and an optimizer that are built.
        if rank == 0:
            model.set_weights([value + 1 for value in model.get_weights()])
            if not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
            model.optimizer.iterations.assign(100)

    broadcast = {
        "hvd": hvd.callbacks.BroadcastGlobalVariablesCallback,
        "tfdist": BroadcastVariables,
    }
    callbacks = [broadcast[whose](0)]
    if is_late:
        callbacks.append(keras.callbacks.LambdaCallback(on_train_begin=load))
    else:
        load()
    model.fit(*data_of(rank), batch_size=8, verbose=0, callbacks=callbacks)
    return values_of(model)


@pytest.mark.parametrize("case", LOADED)
def test_a_model_that_one_rank_has_loaded_reaches_the_others(found, case):
    one, other = (rank["loaded"][case] for rank in found)

    assert one == other
    assert 100 + STEPS in one


class WithHead(keras.Model):
    """A model with a layer that only training calls."""

    def __init__(self):
        super().__init__()
        self.dense, self.head = keras.layers.Dense(1), keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.head(self.dense(x)) if training else self.dense(x)


def train_a_layer_that_only_training_calls():
    import tfdist.horovod as hvd

    rank = hvd.rank()
    keras.utils.set_random_seed(rank + 1)
    model = WithHead()
    x, y = data_of(rank)
    model(x)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[broadcast])
    return values_of(model)


def test_a_layer_that_only_training_calls_is_sent_too(found):
    one, other = (rank["head"] for rank in found)

    assert one == other
    # Of two layers, and of the optimizer.
    assert len(one) == 2 * 2 + 2


def keep_local_variables():
    import tfdist.horovod as hvd

    rank = hvd.rank()
    constant = {"kernel_initializer": keras.initializers.Constant(rank)}
    layers = [keras.layers.Dense(2, use_bias=False, **constant) for _ in range(3)]
    for layer in layers:
        layer.trainable = False
    model = keras.Sequential([keras.Input((2,)), *layers])
    model.compile(loss="mse")
    x = np.ones((4, 2), "float32")
    one = layers[0].variables[0]
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=one)
    broadcast.register_local_var(layers[1].variables[0].value)
    model.fit(x, x, verbose=0, callbacks=[broadcast])
    return [float(layer.kernel.numpy()[0, 0]) for layer in layers]


def test_local_variables_stay_as_they_are(found):
    assert [rank["local"] for rank in found] == [[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]]


def broadcast_different_models():
    import tfdist.horovod as hvd

    found = []
    # The second time rank 1 has more variables, and the first are alike.
    for layers in ([2 + hvd.rank()], [2] * (1 + hvd.rank())):
        model = keras.Sequential([keras.Input((2,)), *map(keras.layers.Dense, layers)])
        model.compile(keras.optimizers.SGD(), "mse")
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        try:
            model.fit(np.ones((4, 2)), np.ones((4, layers[-1])), callbacks=callbacks)
        except RuntimeError as error:
            found.append(str(error))
    return found


def test_ranks_with_different_models_are_told_so(found):
    one, other = (rank["different"] for rank in found)

    assert one[0].startswith("The ranks have different variables in model 'sequential")
    assert (
        "Received: variable 0 is (2, 2) float32 on rank 0 and (2, 3) float32 on rank 1"
        ". Make the same model and the same optimizer on every rank." in one[0]
    )
    assert "variable 2 is () int64 on rank 0 and (2, 2) float32 on rank 1" in one[1]
    assert [message.split(" in model")[0] for message in one] == [
        message.split(" in model")[0] for message in other
    ]


def average_metrics():
    import tfdist.horovod as hvd

    rank = hvd.rank()
    seen = []

    class Later(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(dict(logs))

    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1, trainable=False)(inputs))
    model.compile(loss=lambda y, _: y, metrics=["mae"])
    # The loss is the target: 1 on rank 0, and 2 on rank 1.
    x, y = np.zeros((8, 1), "float32"), np.full((8, 1), rank + 1.0, "float32")
    average = hvd.callbacks.MetricAverageCallback()
    history = []
    for _ in range(2):
        options = {"validation_data": (x, 10 * y), "epochs": 2, "verbose": 0}
        fitted = model.fit(x, y, callbacks=[average, Later()], **options)
        history.append(fitted.history)
    return {"seen": seen, "history": history}


def test_logs_are_the_mean_over_ranks(found):
    averaged = [rank["average"] for rank in found]
    expected = {"loss": [1.5] * 2, "val_loss": [15.0] * 2}

    for rank in averaged:
        for history in rank["history"]:
            assert {name: history[name] for name in expected} == expected
    assert averaged[0]["seen"] == averaged[1]["seen"]
    assert averaged[0]["seen"][0]["mae"] == 1.5
