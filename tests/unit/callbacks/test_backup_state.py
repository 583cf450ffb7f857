"""State of one process: restored bit for bit, or shared out to other ranks."""

import json
import random
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.callbacks import RankZero
from tfdist.callbacks.backup.files import from_bytes, to_bytes
from tfdist.callbacks.backup.state import (
    EQUAL,
    SUMMED,
    SavedVariables,
    TrainingVariables,
    callback_states,
    random_states,
    set_callback_states,
    set_random_states,
)
from tfdist.collectives.single import SingleCollective
from tfdist.mixed_precision import LossScaleOptimizer

DTYPES = ["bfloat16", "float16", "float32", "int64", "bool"]


class Layer(keras.layers.Layer):
    """Holds what a training may hold: a weight, a statistic, and others."""

    def __init__(self):
        super().__init__()
        self.kernel = self.add_weight(shape=(2,), name="kernel")
        self.statistic = self.add_weight(shape=(2,), name="mean", trainable=False)
        for dtype in DTYPES:
            options = {"trainable": False, "initializer": "ones", "dtype": dtype}
            self.add_weight(shape=(3,), name=dtype, **options)

    def call(self, inputs):
        return inputs * self.kernel


def trained(optimizer="sgd", steps=1):
    """Return a model after some steps."""
    model = keras.Sequential([keras.Input((2,)), Layer()])
    model.compile(optimizer, "mse", metrics=["mae"])
    x = np.ones((steps, 2), "float32")
    model.fit(x, 3 * x, batch_size=1, verbose=0)
    return model


@pytest.fixture(scope="module")
def three():
    """Models of three ranks."""
    return [trained() for _ in range(3)]


@pytest.fixture
def models(three):
    """The same, with values that differ where ranks may differ."""
    for rank, model in enumerate(three):
        layer = model.layers[0]
        layer.kernel.assign([0.1, -0.2])
        layer.statistic.assign([rank + 0.1, 2.0 * rank])
        model.metrics[0].total.assign(10.0 + rank)
        model.metrics[0].count.assign(rank + 1.0)
        model.metrics[1].reset_state()
    return three


@pytest.fixture
def save(on_ranks):
    """Return what the ranks of some models have; a file has been through it."""

    def save(models, *, with_metrics=True):
        def take(collective):
            mine = TrainingVariables(models[collective.rank], with_metrics=with_metrics)
            return mine.take(collective)

        found = on_ranks(len(models), take)
        specs, equal, _ = found[0]
        # But for their paths, which are those of several models of one process.
        kinds = [[spec[1:] for spec in of_rank[0]] for of_rank in found]
        assert kinds == kinds[:1] * len(models)
        return SavedVariables(
            [list(spec) for spec in specs], equal, [own for *_, own in found]
        )

    return save


def give(saved, model, rank, size):
    """Let the model of a rank, which has been changed, have its values."""
    for variable in [*model.variables, *model.metrics_variables]:
        variable.assign(tf.zeros_like(variable))
    variables = TrainingVariables(model, with_metrics=True)
    variables.check(saved.specs, "folder")
    collective = SimpleNamespace(rank=rank, size=size)
    variables.restore(saved, collective, metrics=False)
    variables.restore(saved, collective, metrics=True)


def values_of(model):
    """Return the bits of all variables."""
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [tf.convert_to_tensor(variable).numpy().tobytes() for variable in variables]


def test_every_rank_gets_its_own_to_the_bit(models, save):
    right = [values_of(model) for model in models]
    saved = save(models)
    for rank, model in enumerate(models):
        give(saved, model, rank, 3)

    assert [values_of(model) for model in models] == right
    assert len({tuple(values) for values in right}) == 3


@pytest.mark.parametrize("size", [1, 2, 4])
def test_other_ranks_share_it(models, save, size):
    saved = save(models)
    for rank in range(size):
        model = models[rank % 3]
        give(saved, model, rank, size)

        layer, loss = model.layers[0], model.metrics[0]
        np.testing.assert_array_equal(layer.kernel, np.float32([0.1, -0.2]))
        # The mean of 0.1, 1.1, 2.1 and that of 0, 2, 4.
        np.testing.assert_allclose(layer.statistic, [1.1, 2.0], rtol=1e-6)
        # 10 + 11 + 12 and 1 + 2 + 3.
        expected = (33.0, 6.0) if rank == 0 else (0.0, 0.0)
        assert (float(loss.total.numpy()), float(loss.count.numpy())) == expected


def test_variables_of_tensorflow_are_saved_last_and_may_be_made_later():
    alone = SingleCollective()
    with_raw, without = trained(), trained()
    with_raw.layers[0].raw = tf.Variable(2.0)
    variables = TrainingVariables(with_raw, with_metrics=True)
    specs, equal, own = variables.take(alone)
    saved = SavedVariables(specs, equal, [own], len(variables.raw))
    with_raw.layers[0].raw.assign(3.0)
    for model in (with_raw, without):
        restored = TrainingVariables(model, with_metrics=False)
        TrainingVariables(model, with_metrics=True).check(specs, "folder", saved.raw)
        restored.restore(saved, alone, metrics=False)

    assert saved.raw == 1
    assert float(with_raw.layers[0].raw) == 2.0
    assert values_of(without)[0] == values_of(with_raw)[0]


def test_weights_that_ranks_have_of_their_own_stay_theirs(models, save):
    """Without a strategy, as in layers that are local to a rank."""

    def steps(model):
        return int(model.optimizer.iterations.numpy())

    for rank, model in enumerate(models):
        model.optimizer.iterations.assign(7 + rank)
    saved = save(models)
    # Integers may be states of generators.
    give(saved, models[0], 3, 4)
    assert steps(models[0]) == 7
    for rank, model in enumerate(models):
        give(saved, model, rank, 3)
        assert steps(model) == 7 + rank
        model.layers[0].kernel.assign([rank, 1.0])
    saved = save(models)
    for rank, model in enumerate(models):
        give(saved, model, rank, 3)

        np.testing.assert_array_equal(model.layers[0].kernel, [rank, 1.0])
    with pytest.raises(ValueError, match=r"kernel of 3 ranks, for 2\. Continue with 3"):
        give(saved, models[0], 0, 2)


def test_gradients_that_accumulate_are_parts_of_sums(save):
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
    model = trained(optimizer, steps=2)
    saved = save([model])
    right = values_of(model)
    (place,) = [
        place
        for place, spec in enumerate(saved.specs)
        if "gradient_accumulator" in spec[0]
    ]
    assert saved.specs[place][-1] == SUMMED
    assert np.any(saved.value(place, 0, 2))
    np.testing.assert_array_equal(saved.value(place, 1, 2), 0)
    give(saved, model, 0, 1)

    assert values_of(model) == right


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ([["kernel", [3], "float32", EQUAL]], r"kernel \(3,\) float32"),
        ([["kernel", [2], "float16", EQUAL]], r"kernel \(2,\) float16"),
        ([], "nothing"),
    ],
)
def test_another_model_is_refused(models, save, change, words):
    saved = save(models)
    specs = [*change, *saved.specs[1:]] if change else []
    variables = TrainingVariables(models[0], with_metrics=True)
    with pytest.raises(
        ValueError,
        match=rf"^backup_dir holds the state of another model or optimizer\. Received: "
        rf"/backup with {words}, where this model has layer[_0-9]*/kernel \(2,\) "
        r"float32\. Build the model that was trained, or remove the folder to train "
        r"from the beginning\.$",
    ):
        variables.check(specs, "/backup")


class Counting(keras.callbacks.Callback):
    """A user's own, with a state."""

    def __init__(self, state=None):
        super().__init__()
        self.state = state

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


class Sampling(Counting):
    """Another one."""


def restored(callbacks, others):
    """Let others remember what callbacks do, by way of a file."""
    arrays = {}
    states = json.loads(json.dumps(callback_states(callbacks, arrays)))
    set_callback_states(others, states, from_bytes(to_bytes(arrays)))
    return others


def stopping(best, *weights):
    callback = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    callback.best = best
    callback.best_weights = [np.array(weight, "float32") for weight in weights] or None
    return callback


def test_early_stopping_has_its_best_weights():
    (other,) = restored(
        [stopping(0.5, [1.0, 2.0], 3.0)], [keras.callbacks.EarlyStopping("loss")]
    )

    assert other.best == 0.5
    assert [weight.tolist() for weight in other.best_weights] == [[1.0, 2.0], 3.0]
    assert {weight.dtype.name for weight in other.best_weights} == {"float32"}


@pytest.mark.parametrize(
    "state",
    [
        *(0, -3, 2**70, 0.1, float("inf"), True, "words", "", [], {}),
        *([1, [2.5, None], "a"], {"a": {"b": [1]}, "": None}),
        {"nested": [{"deep": [False]}]},
    ],
)
def test_a_user_s_state_comes_back(state):
    (other,) = restored([Counting(state)], [Counting()])

    assert other.state == state
    assert type(other.state) is type(state)


@pytest.mark.parametrize(
    "state",
    [
        *(np.array([1]), [np.array([1])], {"a": np.array([1])}),
        keras.Variable([1]),
    ],
)
def test_what_a_callback_changes_later_is_not_in_its_state(state):
    """It is written while the training goes on."""
    arrays = {}
    callback_states([Counting(state)], arrays)
    for leaf in keras.tree.flatten(state):
        if isinstance(leaf, np.ndarray):
            leaf += 1
        else:
            leaf.assign([2])

    assert [array.tolist() for array in arrays.values()] == [[1]]


def test_two_of_a_kind_are_told_apart_by_their_order():
    given = [Counting(1), Sampling("a"), Counting(2), Sampling("b")]
    others = [Sampling(), Counting(), Counting(), Sampling(), Counting("own")]
    restored(given, others)

    assert [other.state for other in others] == ["a", 1, 2, "b", "own"]


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_the_callback_that_decides_counts(is_wrapped):
    """A training may have gone on with RankZero, and without."""
    first, second = (
        keras.callbacks.EarlyStopping("loss"),
        keras.callbacks.EarlyStopping("loss"),
    )
    first.wait = 4
    other = RankZero(second) if is_wrapped else second
    restored([RankZero(first)], [other])

    assert second.wait == 4


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ({1, 2}, "set"),
        ({"a": [{1: 0}]}, "dict"),
        ([{"a": object()}], "object"),
        (b"bytes", "bytes"),
        (np.array([object()]), "ndarray"),
        (tf.constant("words"), "EagerTensor"),
    ],
)
def test_a_state_that_cannot_be_written_is_refused(state, name):
    with pytest.raises(
        TypeError,
        match=r"^The state of a callback must consist of numbers, strings, arrays, "
        r"lists, and dictionaries with strings as keys\. Received: "
        rf"{name} in the state of Counting\. Change what its get_state\(\) returns\.$",
    ):
        callback_states([Counting(state)], {})


def drawn():
    return [
        *(random.random(), random.gauss(0, 1), random.getrandbits(64)),
        *(np.random.random(), np.random.randn(), np.random.randint(2**31)),
        *keras.random.uniform((3,)).numpy().tolist(),
    ]


@pytest.mark.usefixtures("own_generators")
@pytest.mark.parametrize("earlier", [0, 1])
def test_what_follows_is_the_same(earlier):
    for _ in range(earlier):
        drawn()
    keras.random.uniform(())
    states = json.loads(json.dumps(random_states()))
    right = drawn()
    drawn()
    set_random_states(states)

    assert drawn() == right


def test_a_counter_takes_a_shorter_integer_of_an_older_backup():
    def make():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    model, again, alone = make(), make(), SingleCollective()
    model.optimizer.skipped_steps.assign(7)
    variables = TrainingVariables(model, with_metrics=True)
    specs, equal, own = variables.take(alone)
    (place,) = (i for i, spec in enumerate(specs) if "skipped_steps" in spec[0])
    path, shape, _, kind = specs[place]
    specs = [*specs[:place], (path, shape, "int32", kind), *specs[place + 1 :]]
    equal[str(place)] = np.int32(equal[str(place)])

    restored = TrainingVariables(again, with_metrics=True)
    restored.check(specs, "folder")
    restored.restore(SavedVariables(specs, equal, [own]), alone, metrics=False)

    assert int(again.optimizer.skipped_steps.numpy()) == 7
