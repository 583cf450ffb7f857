"""The step of a model as a pure function, and the steps that cannot be one."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras import variables
from tfdist.strategies.parameter_server.keras_hooks import ServerKerasHooks
from tfdist.strategies.parameter_server.step import PureStep, VariableReads

X = np.arange(12.0, dtype="float32").reshape(4, 3) / 10
Y = np.arange(4.0, dtype="float32")[:, None]
SPEC = (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)))


def step_of(job, model_type=keras.Sequential, *layers):
    model = model_type([keras.Input((3,)), *layers, keras.layers.Dense(1)], name="m")
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    model.evaluate(X, Y, verbose=0)
    return PureStep(job, model, model.train_step, SPEC)


def results_of(step):
    """Return the results in the slot of a step."""
    slot = step.layout.make()
    handles = [[variable.handle for variable in slot]]
    writer = step.writer(1)
    writer.write(*writer.codec.encode([((X, Y), np.array([4, 4, 0]))]), handles)
    return step.layout.read(handles[0])


class Counting(keras.layers.Layer):
    """A layer that counts rows."""

    def build(self, shape):
        self.rows = self.add_weight(shape=(), initializer="ones", trainable=False)

    def call(self, inputs):
        self.rows.assign_add(tf.cast(tf.shape(inputs)[0], tf.float32))
        return inputs


def test_layer_state_that_does_not_say_how_slices_combine_is_refused(make_job):
    job, counting = make_job("sync"), Counting()

    with pytest.raises(ValueError, match="the state of a layer") as error:
        step_of(job, keras.Sequential, counting)
    assert str(error.value) == (
        "With consistency='sync' the state of a layer must say how the slices of a "
        f"batch combine. Received: {counting.rows.path}, which a step computes from "
        "its batch, with aggregation='none'. Give add_weight aggregation='sum' for "
        "what counts or adds up, 'mean' for averages over rows; for all else use "
        "AllReduceStrategy."
    )


def test_layer_state_that_no_batch_changes_needs_no_aggregation(make_job):
    steps = keras.layers.Dropout(0.5)
    step = step_of(make_job("sync"), keras.Sequential, steps)

    assert [one.variable.path for one in step.assigned if not one.is_sum] == [
        steps.seed_generator.state.path
    ]


class Frozen(keras.Sequential):
    """A model one of whose variables has no gradient."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        kernel, bias = self.trainable_variables
        self.optimizer.apply([None, tape.gradient(loss, bias)], [kernel, bias])
        return {"loss": loss, "count": 20_000_001}


def test_a_variable_without_a_gradient_has_no_slot(job):
    step = step_of(job, Frozen)
    results = results_of(step)

    assert step.has_gradient == [False, True]
    assert [tuple(v.shape) for v in step.weights] == [(1,)]
    assert (len(results.gradients), step.logs.count) == (1, 2)
    assert step.logs.fill([], results.logs.numpy())["count"] == 20_000_001


# Refusals.


class Twice(Frozen):
    def train_step(self, data):
        super().train_step(data)
        return super().train_step(data)


class Assigning(Frozen):
    def train_step(self, data):
        logs = super().train_step(data)
        self.trainable_variables[1].assign([0.0])
        return logs


class Flagging(Frozen):
    def build(self, *args, **kwargs):
        super().build(*args, **kwargs)
        self.flag = keras.Variable(False, dtype="bool", trainable=False, name="flag")

    def train_step(self, data):
        self.flag.assign(True)
        return super().train_step(data)


class Raw(Frozen):
    def build(self, *args, **kwargs):
        super().build(*args, **kwargs)
        self.raw = tf.Variable(0.0, trainable=False, name="raw")

    def train_step(self, data):
        self.raw.assign_add(1.0)
        return super().train_step(data)


class Vectors(Frozen):
    def train_step(self, data):
        return {**super().train_step(data), "many": tf.ones(3)}


class Derived(keras.Sequential):
    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "double": 2.0 * logs["loss"]}


ASSIGNED = "A step must assign only numbers, and leave its weights to the optimizer, "
RETURNED = "A step may return results of metrics as they are, and single numbers, "


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        (
            Twice,
            "A step must apply one optimizer, once, under parameter servers. Received: "
            "2 calls in the train_step of the model 'm'. Join the losses, or use",
        ),
        (
            Assigning,
            f"{ASSIGNED}under parameter servers. Received: PATHbias of type float32, "
            "assigned by a step of 'm'. Assign it in a callback.",
        ),
        (Flagging, f"{ASSIGNED}under parameter servers. Received: PATHflag of type "),
        (
            Vectors,
            f"{RETURNED}under parameter servers. Received: float32 of shape (3,) from "
            "the model 'm'. Let a keras.metrics.Metric of the model compute it.",
        ),
        (
            Derived,
            f"{RETURNED}under parameter servers. Received: a number computed from the "
            "metric result of one batch from the model 'm'.",
        ),
    ],
)
def test_a_step_that_cannot_be_pure_is_refused(job, model_type, message):
    message = re.escape(message).replace("PATH", r"\S*")
    with pytest.raises(ValueError, match=message):
        step_of(job, model_type)


def test_a_step_that_assigns_a_variable_of_tensorflow_is_refused(job, monkeypatch):
    hooks = ServerKerasHooks(job)
    monkeypatch.setattr(variables, "any_hooks_of", lambda job: hooks)

    with pytest.raises(
        ValueError,
        match=r"A step must assign only variables of Keras under parameter servers\. "
        r"Received: the tf\.Variable 'm/raw:0'\. Make it by add_weight or keras\.Vari",
    ):
        step_of(job, Raw)


# Reads of variables.


def caller_of(reads, compute):
    """Trace a step that reads variables, and a function that calls it."""

    def step():
        reads.begin()
        return compute()

    traced = tf.function(step, autograph=False).get_concrete_function()
    reads.end(traced)

    def call():
        with reads.reading():
            return traced()

    return tf.function(call, autograph=False).get_concrete_function()


def test_each_variable_is_read_once_after_the_version():
    a, b = tf.Variable(1.0), tf.Variable(2.0)
    reads = VariableReads(tf.Variable(7, dtype=tf.int64))
    call = caller_of(reads, lambda: reads.value(a) * reads.value(b) + reads.value(a))
    version, *others = [
        op for op in call.graph.get_operations() if op.type == "ReadVariableOp"
    ]
    before = {op.name: {op} for op in call.graph.get_operations()}
    for op in call.graph.get_operations():
        for earlier in [*op.control_inputs, *(tensor.op for tensor in op.inputs)]:
            before[op.name] |= before[earlier.name]

    assert len(others) == 2
    assert all(version in before[other.name] for other in others)
    assert float(call()) == 3.0
    a.assign(3.0)
    assert float(call()) == 9.0
