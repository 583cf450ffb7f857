"""Optimizers: gradients are summed before they are clipped, once for each update."""

from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf


def applied(strategy, gradients, **options):
    """Return a variable after gradients that a twin has, too."""
    with strategy.scope():
        variable = keras.Variable(np.zeros(2, "float32"))
        optimizer = keras.optimizers.SGD(1.0, **options)
        optimizer.build([variable])
    seen = []
    for gradient in gradients:
        strategy.run(lambda g=gradient: optimizer.apply([tf.constant(g)], [variable]))
        seen.append(variable.numpy().tolist())
    return seen


def test_accumulated_gradients_are_sent_once_for_an_update(twin):
    sent = []
    strategy = twin()
    reduce = strategy.collective.all_reduce

    def all_reduce(tensors, *args, **options):
        sent.append(len(tensors))
        return reduce(tensors, *args, **options)

    strategy.collective.all_reduce = all_reduce
    applied(strategy, [[1.0, 2.0]] * 4, gradient_accumulation_steps=2)

    assert sent == [1, 1]


def test_an_optimizer_is_applied_in_a_replica_only(twin):
    variable = keras.Variable([1.0])
    optimizer = keras.optimizers.SGD(1.0, name="mine")
    optimizer.apply([tf.ones(1)], [variable])

    with (
        twin().scope(),
        pytest.raises(
            RuntimeError,
            match=r"An optimizer must be applied inside of strategy\.run\. Received: "
            r"mine\.apply called under strategy\.scope\(\) alone\. Put the step into a "
            r"function and call strategy\.run\(function, args=\.\.\.\)\.",
        ),
    ):
        optimizer.apply([tf.ones(1)], [variable])
    assert variable.numpy().tolist() == [0.0]


def apply(optimizer, variable):
    optimizer.apply([tf.ones(1)], [variable])


def apply_gradients(optimizer, variable):
    optimizer.apply_gradients([(tf.ones(1), variable)])


def apply_in_function(optimizer, variable):
    tf.function(lambda: apply(optimizer, variable))()


@pytest.mark.parametrize("step", [apply, apply_gradients, apply_in_function])
@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("made", ["variable", "optimizer", "both"])
def test_a_step_that_leaves_its_strategy_is_refused(twin, made, is_scaled, step):
    scope = twin().scope
    with nullcontext() if made == "optimizer" else scope():
        variable = keras.Variable([1.0])
    with nullcontext() if made == "variable" else scope():
        optimizer = keras.optimizers.SGD(1.0, name="mine")
        if is_scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="mine")
        if made == "both":
            optimizer.build([variable])

    with pytest.raises(
        RuntimeError,
        match=r"An optimizer must be applied inside of strategy\.run\. Received: "
        r"mine\.apply called without it, on variables of TwinStrategy\. Put the step "
        r"into a function and call strategy\.run\(function, args=\.\.\.\)\.",
    ):
        step(optimizer, variable)
    assert variable.numpy().tolist() == [1.0]


def test_a_variable_that_is_overwritten_is_refused(rank):
    variable = keras.Variable(0.0)
    variable.overwrite_with_gradient = True

    with (
        rank(),
        pytest.raises(
            ValueError,
            match=r"cannot be overwritten with its gradient\. Received: .*variable.* "
            r"Train without float8 quantization, or on one process\.",
        ),
    ):
        keras.optimizers.SGD(1.0).apply([tf.constant(1.0)], [variable])
