"""Callbacks remember, by way of a file, what others of their kinds have left."""

import json
from collections import OrderedDict

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.callbacks import ModelCheckpoint, RankZero
from tfdist.callbacks.callback_states import callback_states, set_callback_states
from tfdist.callbacks.state_files import from_bytes, to_bytes

EarlyStopping = keras.callbacks.EarlyStopping


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
    callback = EarlyStopping("loss", restore_best_weights=True)
    callback.best = best
    callback.best_weights = [np.array(weight, "float32") for weight in weights] or None
    return callback


def test_early_stopping_has_its_best_weights():
    (other,) = restored([stopping(0.5, [1.0, 2.0], 3.0)], [EarlyStopping("loss")])

    assert other.best == 0.5
    assert [weight.tolist() for weight in other.best_weights] == [[1.0, 2.0], 3.0]
    assert {weight.dtype.name for weight in other.best_weights} == {"float32"}


def test_early_stopping_without_weights_has_none():
    (other,) = restored([stopping(0.5)], [stopping(0.1, [1.0])])

    assert other.best_weights is None


def test_a_plateau_goes_on():
    callback = keras.callbacks.ReduceLROnPlateau()
    callback.wait, callback.cooldown_counter, callback.best = 3, 2, np.float32(0.1)
    (other,) = restored([callback], [keras.callbacks.ReduceLROnPlateau()])

    assert (other.wait, other.cooldown_counter) == (3, 2)
    assert other.best == np.float32(0.1)
    assert f"{other.best:.3f}" == "0.100"


def test_the_history_is_there():
    callback = keras.callbacks.History()
    callback.epoch, callback.history = [0, 1], {"loss": [2.0, float("nan")]}
    (other,) = restored([callback], [keras.callbacks.History()])

    assert other.epoch == [0, 1]
    assert repr(other.history) == repr({"loss": [2.0, float("nan")]})


def test_our_own_model_checkpoint_is_one_of_keras(tmp_path):
    first, second = [
        ModelCheckpoint(tmp_path / "best.keras", save_best_only=True) for _ in range(2)
    ]
    first.best = 0.25
    restored([first], [second])

    assert second.best == 0.25


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


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", ">f8", "complex64", "U3"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_a_user_s_arrays_come_back(dtype, shape):
    array = np.ones(shape, dtype)
    (other,) = restored([Counting({"a": [array, array[None]]})], [Counting()])

    for found, wanted in zip(other.state["a"], [array, array[None]], strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "value",
    [
        *(tf.constant([1.0, 2.0]), tf.Variable([1.0, 2.0])),
        *(keras.Variable([1.0, 2.0]), np.array([1.0, 2.0], "float32")),
    ],
    ids=["tensor", "TensorFlow's variable", "Keras's variable", "array"],
)
def test_tensors_come_back_as_arrays(value):
    (other,) = restored([Counting(value)], [Counting()])

    assert isinstance(other.state, np.ndarray)
    assert other.state.tolist() == [1.0, 2.0]


def test_weights_that_numpy_has_no_type_for_come_back():
    callback = stopping(0.5)
    callback.best_weights = [keras.ops.cast([1.5, -2.0], "bfloat16").numpy()]
    (other,) = restored([callback], [EarlyStopping("loss")])
    (weight,) = other.best_weights

    assert weight.dtype.name == "bfloat16"
    assert weight.astype("float32").tolist() == [1.5, -2.0]


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


def test_none_is_no_state():
    assert callback_states([Counting(None), keras.callbacks.Callback()], {}) == []


def test_what_has_left_nothing_begins_anew():
    (other,) = restored([], [Counting("its own")])

    assert other.state == "its own"


def test_a_method_alone_is_no_state():
    class Half(keras.callbacks.Callback):
        def get_state(self):
            raise AssertionError("nobody could set it")

    assert callback_states([Half()], {}) == []


def test_two_of_a_kind_are_told_apart_by_their_order():
    given = [Counting(1), Sampling("a"), Counting(2), Sampling("b")]
    others = [Sampling(), Counting(), Counting(), Sampling(), Counting("own")]
    restored(given, others)

    assert [other.state for other in others] == ["a", 1, 2, "b", "own"]


def test_equal_states_of_two_are_given_to_both():
    others = restored([Counting(1), Counting(1)], [Counting(), Counting()])

    assert [other.state for other in others] == [1, 1]


def test_arrays_of_several_callbacks_do_not_meet():
    states = [np.array([number]) for number in range(12)]
    others = restored(
        [Counting({"a": state, "b": -state}) for state in states],
        [Counting() for _ in states],
    )

    assert [int(other.state["a"][0]) for other in others] == [*range(12)]
    assert [int(other.state["b"][0]) for other in others] == [-n for n in range(12)]


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_the_callback_that_decides_counts(is_wrapped):
    """A training may have gone on with RankZero, and without."""
    first, second = EarlyStopping("loss"), EarlyStopping("loss")
    first.wait = 4
    other = RankZero(second) if is_wrapped else second
    restored([RankZero(first)], [other])

    assert second.wait == 4


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ({1, 2}, "set"),
        ([{"a": object()}], "object"),
        (b"bytes", "bytes"),
        (lambda: 0, "function"),
        (1j, "complex"),
        (np.array([object()]), "ndarray"),
        (np.array(["a", None], object), "ndarray"),
        (tf.constant("words"), "EagerTensor"),
    ],
)
def test_a_state_that_cannot_be_written_is_refused(state, name):
    with pytest.raises(
        TypeError,
        match=rf"^What a callback remembers must be numbers, strings, arrays, or lists "
        rf"and dictionaries of those\. Received: {name} in the state of Counting\. "
        r"Change what its get_state\(\) returns\.$",
    ):
        callback_states([Counting(state)], {})


@pytest.mark.parametrize("key", [1, None, (1, 2)])
def test_keys_that_would_come_back_as_others_are_refused(key):
    with pytest.raises(
        TypeError, match=r"Received: a key of type \w+ in the state of Counting\. "
    ):
        callback_states([Counting({"a": [{key: 0}]})], {})


def test_dictionaries_of_other_kinds_are_taken():
    (other,) = restored([Counting(OrderedDict(b=1, a=2))], [Counting()])

    assert [*other.state.items()] == [("b", 1), ("a", 2)]
