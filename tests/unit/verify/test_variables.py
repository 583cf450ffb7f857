"""Variables that are compared, their names, and the states of random numbers."""

import random

import keras
import numpy as np
import tensorflow as tf

from tfdist.verify.watch import Names, current_seeds, entries_of


def make_model():
    layers = [keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*layers, keras.layers.BatchNormalization()])
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    return model


def test_every_variable_is_found_once_with_its_kind():
    model = make_model()

    found = list(entries_of(model, model.layers, [model.optimizer], []))

    variables = [variable for _, _, variable in found]
    assert len({id(variable) for variable in variables}) == len(variables)
    by_kind = {}
    for _, entry, variable in found:
        by_kind.setdefault(entry.kind, set()).add(variable.path.rsplit("/", 1)[-1])
    assert by_kind["weights"] == {"kernel", "bias", "gamma", "beta"}
    moving = {"moving_mean", "moving_variance"}
    assert by_kind["state"] == {*moving, "seed_generator_state"}
    assert by_kind["metrics"] == {"total", "count"}
    assert {"iteration", "learning_rate"} < by_kind["optimizer"]


def test_accumulators_of_each_rank_are_left_out():
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
    weight = keras.Variable([1.0], name="w")
    optimizer.build([weight])

    names = [name for name, _, _ in entries_of(None, [], [optimizer], [weight])]

    assert weight.path in names
    assert not any("accumulator" in name for name in names)


def test_names_are_unique():
    names = Names()
    one, other = tf.Variable(1.0, name="v"), tf.Variable(2.0, name="v")

    assert [names.of(v) for v in (one, other, one)] == ["v:0", "v:0#2", "v:0"]


def test_the_random_states_of_each_generator():
    keras.utils.set_random_seed(3)
    first = current_seeds()
    random.random()
    np.random.random()
    second = current_seeds()
    keras.utils.set_random_seed(3)

    assert current_seeds() == first
    assert first[0] == second[0] == "3"
    assert first[1] != second[1]
    assert first[2] != second[2]
