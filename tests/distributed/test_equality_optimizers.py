"""The equality matrix: every optimizer of Keras, and every option of theirs."""

import numpy as np
import pytest
from equality_matrix import everywhere, on_processes
from equality_models import (
    arrays,
    compiled,
    data,
    embedded,
    fitting,
    optimizer,
    sequential,
    sgd,
    stacked,
    state,
)
from equality_rows import of_keras

import tfdist


def biases_excluded():
    """Weight decay that leaves the biases alone."""
    adam = optimizer("Adam", weight_decay=0.1)()
    adam.exclude_from_weight_decay(var_names=["bias"])
    return adam


def multi():
    optimizers = of_keras("optimizers", "OptimizerMap")(optimizer("Adam")())
    optimizers["dense/.*"] = optimizer("SGD", 0.1, global_clipnorm=0.1)()
    return of_keras("optimizers", "MultiOptimizer")(optimizers)


def lars():
    return tfdist.optimizers.Lars(
        0.05, trust_coefficient=0.2, weight_decay=0.01, global_clipnorm=0.5
    )


def lazy():
    return tfdist.optimizers.LazyAdam(0.05, global_clipnorm=0.1)


def loss_scaled(inner=sgd, **options):
    def make():
        import keras

        return keras.optimizers.LossScaleOptimizer(inner(), **options)

    return make


def one_rank_infinite(x, y):
    """A row whose gradient is not finite; the other ranks' gradients are."""
    x[40] = np.inf
    return {**arrays(x, y), "shuffle": False}


def built_first(strategy):
    """ScheduleFreeAdamW; plain Keras has it wrong when a traced step builds it."""
    x, y = data()
    with strategy.scope():
        model = compiled(sequential(), optimizer("ScheduleFreeAdamW", 0.05))
        model.optimizer.build(model.trainable_variables)
    return state(model, model.fit(**arrays(x, y), epochs=2, verbose=0))


def schedule(name, *args, **options):
    def make():
        import keras

        schedules = keras.optimizers.schedules
        return keras.optimizers.SGD(getattr(schedules, name)(*args, **options))

    return make


OPTIMIZERS = {
    "Adafactor": optimizer("Adafactor"),
    "Adam": optimizer("Adam"),
    "Lamb": optimizer("Lamb"),
    "Lars": lars,
    "LossScaleOptimizer": loss_scaled(dynamic_growth_steps=3),
    "LossScaleOptimizer, scale too large": loss_scaled(initial_scale=float("inf")),
    "LossScaleOptimizer, accumulated and clipped": loss_scaled(
        optimizer("SGD", 1.0, clipnorm=0.1, gradient_accumulation_steps=3)
    ),
    "MultiOptimizer": multi,
    "Muon": optimizer("Muon"),
    "SGD": sgd,
    "global_clipnorm": optimizer("SGD", 1.0, global_clipnorm=0.1),
    "use_ema, overwrite": optimizer(
        "Adam", use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
    ),
    "accumulation, global_clipnorm": optimizer(
        "SGD", 1.0, gradient_accumulation_steps=3, global_clipnorm=0.1
    ),
    "accumulation, use_ema": optimizer(
        "Adam",
        gradient_accumulation_steps=3,
        use_ema=True,
        ema_momentum=0.9,
        ema_overwrite_frequency=2,
    ),
    "loss_scale_factor, clipvalue": optimizer(
        "SGD", 1.0, loss_scale_factor=128.0, clipvalue=0.01
    ),
}
# Reduction asks for none of these classes and options: one step applies them all.
APART = {
    "Adagrad": optimizer("Adagrad", 0.1),
    "Nadam": optimizer("Nadam"),
    "Adam, biases excluded": biases_excluded,
    "Adadelta": optimizer("Adadelta", 1.0),
    "Adam, amsgrad": optimizer("Adam", amsgrad=True),
    "AdamW": optimizer("AdamW", weight_decay=0.1),
    "Adamax": optimizer("Adamax"),
    "Ftrl": optimizer("Ftrl", 0.1, l1_regularization_strength=1e-3),
    "Lion": optimizer("Lion"),
    "RMSprop": optimizer("RMSprop"),
    "RMSprop, centered": optimizer("RMSprop", momentum=0.9, centered=True),
    "SGD, nesterov": optimizer("SGD", 0.1, momentum=0.9, nesterov=True),
    "ExponentialDecay": schedule("ExponentialDecay", 0.1, 3, 0.5),
    "CosineDecay": schedule("CosineDecay", 0.1, 10, warmup_target=0.2, warmup_steps=3),
    "PiecewiseConstantDecay": schedule(
        "PiecewiseConstantDecay", [3, 6], [1.0, 0.5, 0.1]
    ),
}


part = stacked(lambda layers: [layers.Dense(1, activation="sigmoid")])


def fit_apart(strategy, makes=APART):
    """Train by a step that applies each of several optimizers to its own variables.

    Args:
        strategy: Under which to train.
        makes: What makes the optimizers, by name.

    Returns:
        The optimizers by name, and what must be equal: the weights by that name, and
        the history.
    """
    import keras
    import tensorflow as tf

    class Apart(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = {name: part() for name in makes}
            self.optimizers = {name: make() for name, make in makes.items()}
            for name, own in self.optimizers.items():
                own.build(self.parts[name].trainable_variables)

        def train_step(self, data):
            x, y = data
            losses = {}
            for name, own in self.optimizers.items():
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(x, y, self.parts[name](x, training=True))
                weights = self.parts[name].trainable_variables
                own.apply(tape.gradient(loss, weights), weights)
                losses[name] = loss
            return losses

    x, y = data()
    with strategy.scope():
        model = compiled(Apart())
    history = model.fit(**arrays(x, y), epochs=2, verbose=0).history
    weights = {name: its.get_weights() for name, its in model.parts.items()}
    return model.optimizers, {"weights": weights, "history": history}


def apart(strategy):
    """Return also the variables of the optimizers."""
    optimizers, found = fit_apart(strategy)
    state_of = {
        name: [np.array(variable) for variable in own.variables]
        for name, own in optimizers.items()
    }
    return {**found, "optimizer": state_of}


ROWS = {
    **{name: fitting(optimizer=make) for name, make in OPTIMIZERS.items()},
    "ScheduleFreeAdamW": built_first,
    "LossScaleOptimizer, one rank infinite": fitting(
        optimizer=loss_scaled(), feed=one_rank_infinite
    ),
    "LazyAdam": fitting(embedded, optimizer=lazy),
    "each optimizer apart": apart,
}
# Of each, another row of `make test` has the subject too. Of a class without an option
# it does not matter which one it is.
VARIANTS = [
    "Adafactor",
    "Adam",
    "Lamb",
    "LossScaleOptimizer, scale too large",
    "Muon",
    "SGD",
    "ScheduleFreeAdamW",
    "accumulation, use_ema",
    "each optimizer apart",
]
# What `make test` runs; the others differ from one of them in less.
QUICK = [
    "LossScaleOptimizer",
    "LossScaleOptimizer, accumulated and clipped",
    "global_clipnorm",
    "use_ema, overwrite",
    "accumulation, global_clipnorm",
    "LossScaleOptimizer, one rank infinite",
    "LazyAdam",
]


@pytest.mark.parametrize(
    ("row", "column"), everywhere(ROWS, quick=QUICK, variants=VARIANTS)
)
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)


def test_every_optimizer_of_keras_has_a_row():
    import keras

    optimizers = {
        name
        for name, value in vars(keras.optimizers).items()
        if isinstance(value, type)
        and issubclass(value, keras.optimizers.Optimizer)
        and value is not keras.optimizers.Optimizer
    }

    assert optimizers - {row.split(",")[0] for row in (*ROWS, *APART)} == set()


@pytest.mark.parametrize(
    ("row", "column"),
    on_processes(
        ROWS, ["LossScaleOptimizer, one rank infinite"], quick=QUICK, variants=VARIANTS
    ),
)
def test_a_scaled_step_is_skipped_on_all_ranks_or_on_none(cells, column, row):
    for ended in cells.by_rank(row, column):
        assert all(np.isfinite(array).all() for array in ended["weights"])
