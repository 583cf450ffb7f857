import keras
import numpy as np
import pytest

from tfdist.compat.keras import variables


class Hooks:
    def __init__(self):
        self.assigned = []

    def note_assigned(self, variable):
        self.assigned.append(variable)


@pytest.fixture
def hooks(monkeypatch):
    """Put the patch on, under a strategy of several processes."""
    made = Hooks()
    monkeypatch.setattr(keras.Variable, "assign", variables._assign_and_note)
    monkeypatch.setattr(variables, "current_hooks", lambda: made)
    return made


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_whatever_assigns_a_variable_is_noted(hooks, method):
    variable = keras.Variable(5.0)

    getattr(variable, method)(2.0)

    assert hooks.assigned == [variable]
    expected = {"assign": 2.0, "assign_add": 7.0, "assign_sub": 3.0}[method]
    assert float(variable.numpy()) == expected


def test_the_value_comes_back_as_from_keras(hooks):
    variable = keras.Variable([1.0, 2.0])

    found = variable.assign([3, 4])

    assert found.numpy().tolist() == [3.0, 4.0]
    assert found.dtype == "float32"


def test_elsewhere_nothing_is_noted(hooks, monkeypatch):
    monkeypatch.setattr(variables, "current_hooks", lambda: None)
    variable = keras.Variable(5.0)
    variable.assign(2.0)

    assert float(variable.numpy()) == 2.0
    assert hooks.assigned == []


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.BatchNormalization,
        lambda: keras.layers.SpectralNormalization(keras.layers.Dense(2)),
    ],
)
def test_keras_s_layers_assign_their_state_by_this_method(hooks, layer):
    made = layer()
    made.build((None, 2))
    made(np.ones((4, 2), "float32"), training=True)

    state = [v for v in made.non_trainable_variables if v.dtype == "float32"]
    assert state
    assert {id(v) for v in state} <= {id(v) for v in hooks.assigned}


def test_metrics_and_weights_assign_by_it_too(hooks):
    mean = keras.metrics.Mean()
    mean.update_state(3.0)

    assert [v.name for v in hooks.assigned] == ["total", "count"]
