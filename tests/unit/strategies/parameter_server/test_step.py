import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.step import PureStep, VariableReads

X = np.arange(12.0, dtype="float32").reshape(4, 3) / 10
Y = np.arange(4.0, dtype="float32")[:, None]
SPEC = (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)))


def compiled(model_type=keras.Sequential, *layers, metrics=("mae",)):
    model = model_type([keras.Input((3,)), *layers, keras.layers.Dense(1)], name="m")
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=list(metrics))
    model.optimizer.build(model.trainable_variables)
    model.evaluate(X, Y, verbose=0)
    return model


def step_of(strategy, model, step="train_step"):
    return PureStep(strategy, model, getattr(model, step), SPEC)


def left_by(step, *batches, rows=None):
    """Return what is in the slots after batches were computed."""
    slots = [step.layout.make() for _ in batches]
    handles = [[v.handle for v in slot] for slot in slots]
    rows = rows or [[len(batch[0]), len(batch[0]), 0] for batch in batches]
    writer = step.writer(len(batches))
    steps = list(zip(batches, np.array(rows), strict=True))
    writer.write(*writer.codec.encode(steps), handles)
    return [step.layout.read(slot) for slot in handles]


def expected_gradients(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    return [tf.convert_to_tensor(g) for g in tape.gradient(loss, model.weights)], loss


def test_a_step_leaves_its_gradients_and_changes_nothing(strategy):
    model = compiled()
    before = model.get_weights()
    step = step_of(strategy, model)
    [taken] = left_by(step, (X, Y))
    expected, loss = expected_gradients(model, X, Y)

    for found, wanted in zip(taken.gradients, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    for found, kept in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, kept)
    assert int(model.optimizer.iterations) == 0
    total = [
        move
        for moved, move in zip(step.assigned, taken.deltas, strict=True)
        if "loss/total" in moved.variable.path
    ]
    np.testing.assert_allclose(total, [4 * loss], rtol=1e-6)


def test_batches_of_any_number_of_rows_are_computed_one_after_the_other(strategy):
    model = compiled()
    step = step_of(strategy, model)
    batches = [(X[:1], Y[:1]), (X[1:], Y[1:]), (X, Y)]
    for taken, batch in zip(left_by(step, *batches), batches, strict=True):
        expected, _ = expected_gradients(model, *batch)
        np.testing.assert_allclose(taken.gradients[0], expected[0], rtol=1e-6)
    assert step.writer(3) is step.writer(3)


def test_a_test_step_has_no_gradients(strategy):
    step = step_of(strategy, compiled(), "test_step")
    [taken] = left_by(step, (X, Y))

    assert step.optimizer is None
    assert (step.weights, taken.gradients) == ([], [])
    assert taken.logs.shape == (0,)


def test_moving_averages_leave_what_the_batch_adds_to_them(strategy):
    model = compiled(keras.Sequential, keras.layers.BatchNormalization(momentum=0.5))
    step = step_of(strategy, model)
    [taken] = left_by(step, (X, Y))

    states = [
        (moved.momentum, move.numpy())
        for moved, move in zip(step.assigned, taken.deltas, strict=True)
        if not moved.is_metric
    ]
    assert [kept for kept, _ in states] == [0.5, 0.5]
    np.testing.assert_allclose(states[0][1], 0.5 * X.mean(0), rtol=1e-5)
    np.testing.assert_allclose(states[1][1], 0.5 * X.var(0), rtol=1e-5)


class Counting(keras.layers.Layer):
    """A layer that counts rows."""

    def build(self, shape):
        self.rows = self.add_weight(shape=(), initializer="ones", trainable=False)

    def call(self, inputs):
        self.rows.assign_add(tf.cast(tf.shape(inputs)[0], tf.float32))
        return inputs


def test_other_state_of_layers_moves_by_what_the_step_has_moved_it(strategy):
    step = step_of(strategy, compiled(keras.Sequential, Counting()))
    [taken] = left_by(step, (X, Y))

    [(kept, move)] = [
        (moved.momentum, float(move))
        for moved, move in zip(step.assigned, taken.deltas, strict=True)
        if not moved.is_metric
    ]
    assert (kept, move) == (1.0, len(X))


class Frozen(keras.Sequential):
    """A model one of whose variables has no gradient."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        kernel, bias = self.trainable_variables
        self.optimizer.apply([None, tape.gradient(loss, bias)], [kernel, bias])
        return {"loss": loss, "count": 3}


def test_a_variable_without_a_gradient_has_no_place(strategy):
    model = compiled(Frozen)
    step = step_of(strategy, model)
    [taken] = left_by(step, (X, Y))

    assert step.has_gradient == [False, True]
    assert [v.path for v in step.weights] == [model.trainable_variables[1].path]
    assert len(taken.gradients) == 1
    assert step.logs.count == 2
    np.testing.assert_allclose(
        taken.logs, [3.0, expected_gradients(model, X, Y)[1]], rtol=1e-6
    )
    found = step.logs.fill([], np.array([3.0, 0.5]))
    assert found == {"count": 3.0, "loss": 0.5}


# What is refused.


class Twice(Frozen):
    def train_step(self, data):
        super().train_step(data)
        return super().train_step(data)


class Assigning(Frozen):
    def train_step(self, data):
        logs = super().train_step(data)
        self.trainable_variables[1].assign([0.0])
        return logs


class Vectors(Frozen):
    def train_step(self, data):
        return {**super().train_step(data), "many": tf.ones(3)}


class Words(Frozen):
    def train_step(self, data):
        return {**super().train_step(data), "text": "word"}


@pytest.mark.parametrize(
    ("kind", "received"),
    [(Vectors, "float32 of shape (3,)"), (Words, "string of shape ()")],
)
def test_what_is_no_number_is_refused(strategy, kind, received):
    with pytest.raises(ValueError, match=r"results of metrics and single") as error:
        step_of(strategy, compiled(kind))

    assert f"Received: {received} from the model 'm'." in str(error.value)


class Derived(keras.Sequential):
    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "double": 2.0 * logs["loss"]}


def test_a_number_computed_from_a_metric_is_refused(strategy):
    with pytest.raises(
        ValueError,
        match=r"results of metrics as they are, under .*Received: a number computed "
        r"from such a result in the model 'm'\. Make it a keras\.metrics\.Metric",
    ):
        step_of(strategy, compiled(Derived))


class Flagging(Frozen):
    def train_step(self, data):
        self.flag.assign(True)
        return super().train_step(data)

    def build(self, *args, **kwargs):
        super().build(*args, **kwargs)
        self.flag = keras.Variable(False, dtype="bool", trainable=False, name="flag")


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
            "A step must leave its weights to the optimizer, under parameter servers. "
            "Received: PATHbias, assigned by a step of 'm'. Assign it in a callback.",
        ),
        (
            Flagging,
            "A step must not assign what cannot be added up, under parameter servers. "
            "Received: PATHflag of type bool, assigned by a step of 'm'. Keep it",
        ),
    ],
)
def test_a_step_that_cannot_be_pure_is_refused(strategy, model_type, message):
    message = re.escape(message).replace("PATH", r"\S*")
    with pytest.raises(ValueError, match=message):
        step_of(strategy, compiled(model_type))


@pytest.fixture
def version():
    return tf.Variable(7, dtype=tf.int64)


def traced(reads, compute):
    """Trace something that is given the version and what may be read."""

    def step():
        version, _ = reads.begin()
        return compute(version, reads.value)

    function = tf.function(step, autograph=False).get_concrete_function()
    reads.end(function)
    return function


def caller_of(reads, function, times=1):
    """Return a function that calls another as often as told, as workers do."""

    def call():
        results = []
        for _ in range(times):
            with reads.reading():
                results.append(function())
        return results

    return tf.function(call, autograph=False).get_concrete_function()


def reading_nodes(concrete):
    graph = concrete.graph.as_graph_def()
    found = [graph.node, *(function.node_def for function in graph.library.function)]
    return [[n.op for n in nodes].count("ReadVariableOp") for nodes in found]


def test_a_step_is_called_with_what_the_variables_hold_by_then(version):
    a, b = tf.Variable([1.0, 2.0]), tf.Variable([[3]])
    reads = VariableReads(version)
    step = traced(reads, lambda v, value: (v, value(a), value(b), value(a)))
    call = caller_of(reads, step)
    for add in (0, 1):
        version.assign_add(add)
        a.assign_add([add, add])
        found = call()[0]
        assert int(found[0]) == 7 + add
        for one in (found[1], found[3]):
            assert one.numpy().tolist() == [1.0 + add, 2.0 + add]
        assert found[2].numpy().tolist() == [[3]]


def test_each_variable_is_read_once_outside_of_the_step(version):
    a, b = tf.Variable(1.0), tf.Variable(2.0)
    reads = VariableReads(version)
    call = caller_of(reads, traced(reads, lambda v, value: value(a) * value(b)))

    assert sorted(reading_nodes(call)) == [0, 3]
    assert float(call()[0]) == 2.0


def test_every_variable_is_read_after_the_version(version):
    a = tf.Variable(2.0)
    reads = VariableReads(version)
    call = caller_of(reads, traced(reads, lambda v, value: value(a)))
    first, second = [
        op for op in call.graph.get_operations() if op.type == "ReadVariableOp"
    ]
    seen, ahead = set(), [second]
    while ahead:
        op = ahead.pop()
        if op.name not in seen:
            seen.add(op.name)
            ahead += [*op.control_inputs, *(tensor.op for tensor in op.inputs)]

    assert first.name in seen


def test_a_step_is_traced_again_from_the_beginning(version):
    """As TensorFlow does if the first trace has made a variable."""
    a, b, made = tf.Variable(1.0), tf.Variable(2.0), []
    reads = VariableReads(version)

    def compute(_, value):
        if not made:
            made.append(tf.Variable(0.0))
            return value(b) + value(a)
        return value(a)

    call = caller_of(reads, traced(reads, compute))

    assert float(call()[0]) == 1.0
    assert sorted(reading_nodes(call)) == [0, 2]


def test_a_step_is_called_within_a_reading_only(version):
    reads = VariableReads(version)
    step = traced(reads, lambda v, value: v)
    with pytest.raises(AssertionError, match="must be set around each call"):
        step()
