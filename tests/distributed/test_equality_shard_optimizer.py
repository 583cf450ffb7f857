"""The equality matrix: optimizers whose variables only the owners of weights keep."""

import numpy as np
import pytest
from equality_matrix import COLUMNS, SLOW
from equality_models import (
    BATCH,
    EPOCHS,
    arrays,
    compiled,
    data,
    embedded,
    in_float32,
    optimizer,
    sequential,
    stacked,
    wait_for_chief,
)
from test_equality_optimizers import (
    APART,
    OPTIMIZERS,
    fit_apart,
    lazy,
    loss_scaled,
    one_rank_infinite,
)

import tfdist

# Weight by weight as Adam: one step applies them all.
ELEMENTWISE = {
    **{name: make for name, make in APART.items() if not name.endswith("Decay")},
    "SGD": OPTIMIZERS["SGD"],
}
# MultiOptimizer is refused; the others have another row, or nothing to do with owners.
NAMES = [
    name
    for name in OPTIMIZERS
    if name not in (*ELEMENTWISE, "MultiOptimizer") and not name.endswith("too large")
]


def sharding(strategy):
    """Return a strategy over the same processes that shards optimizers."""
    if tfdist.size() == 1:
        return strategy
    return tfdist.strategies.AllReduceStrategy(
        strategy.collective, shard_optimizer=True
    )


def saved_state(model, history):
    """Return what a model has become, the optimizer's variables from its file."""
    import keras

    model.save("saved.keras")
    wait_for_chief(model.distribute_strategy)
    loaded = keras.models.load_model("saved.keras", safe_mode=False)
    # No rank may write the next file, before all have read this one.
    wait_for_chief(model.distribute_strategy)
    return {
        "weights": model.get_weights(),
        "saved": loaded.get_weights(),
        "optimizer": {
            f"{i} {variable.name}": np.array(variable)
            for i, variable in enumerate(loaded.optimizer.variables)
            if "gradient_accumulator" not in variable.path
        },
        "history": {"loss": history.history["loss"]},
    }


def fitted(strategy, model=sequential, feed=arrays, **options):
    """Train by `fit`, and save the model."""
    import keras

    x, y = data(floatx=keras.config.floatx())
    strategy = sharding(strategy)
    with strategy.scope():
        model = compiled(model(), **options)
    history = model.fit(**{"epochs": EPOCHS, "verbose": 0, **feed(x, y)})
    return saved_state(model, history)


def fitting(*args, **options):
    return lambda strategy: fitted(strategy, *args, **options)


def looped(strategy):
    """A custom loop, without Keras's `fit`."""
    import keras
    import tensorflow as tf

    strategy = sharding(strategy)
    x, y = data(96, keras.config.floatx())
    with strategy.scope():
        model = compiled(sequential(), optimizer("AdamW", clipnorm=0.1))
        model.optimizer.build(model.trainable_variables)
        rows = tf.data.Dataset.from_tensor_slices((x, y.astype(x.dtype)))
        batches = strategy.experimental_distribute_dataset(rows.batch(BATCH))

    @tf.function
    def step(inputs, labels):
        with tf.GradientTape() as tape:
            losses = (model(inputs) - labels) ** 2
            loss = tf.reduce_sum(losses) / BATCH
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)

    for inputs, labels in batches:
        strategy.run(step, args=(inputs, labels))
    return {"weights": model.get_weights()}


def apart(strategy):
    """A step that applies each of several optimizers to its own variables."""
    _, found = fit_apart(sharding(strategy), ELEMENTWISE)
    return found


def constrained(layers):
    """Layers whose weights the optimizer must keep below a norm."""
    import keras

    return [
        layers.Dense(6, "tanh", kernel_constraint=keras.constraints.MaxNorm(0.3)),
        layers.Dense(1, "sigmoid", bias_constraint=keras.constraints.NonNeg()),
    ]


ROWS = {
    **{name: fitting(optimizer=OPTIMIZERS[name]) for name in NAMES},
    "each optimizer apart": apart,
    "LazyAdam": fitting(embedded, optimizer=lazy),
    "one rank infinite": fitting(optimizer=loss_scaled(), feed=one_rank_infinite),
    "constraints": fitting(stacked(constrained), optimizer=optimizer("Adam", 0.1)),
    "jit_compile": in_float32(fitting(optimizer=optimizer("Adam"), jit_compile=True)),
    "run_eagerly": fitting(optimizer=optimizer("Adam"), run_eagerly=True),
    "steps_per_execution": fitting(
        optimizer=optimizer("Adam", gradient_accumulation_steps=3),
        steps_per_execution=2,
    ),
    "a custom loop": looped,
}


# What `make test` runs; the others differ from one of them in less.
QUICK = (
    "LossScaleOptimizer, accumulated and clipped",
    "a custom loop",
    "accumulation, global_clipnorm",
    "global_clipnorm",
    "one rank infinite",
    "use_ema, overwrite",
)


# Another row, or `test_shard_optimizer.py`, has the subject of each.
NOT_USUAL = (
    "Adafactor",
    "Adam",
    "Lars",
    "LossScaleOptimizer",
    "accumulation, use_ema",
    "jit_compile",
    "loss_scale_factor, clipvalue",
    "run_eagerly",
)


# The others differ in options, and need one number of ranks.
ON_THREE = (
    "LazyAdam",
    "Muon",
    "accumulation, global_clipnorm",
    "global_clipnorm",
)


def cells_of(rows):
    """Return each row with its columns: processes only, of which most rows need one."""
    chosen = []
    for row in rows:
        usual, most = COLUMNS
        if row not in NOT_USUAL:
            chosen.append(pytest.param(row, usual, marks=() if row in QUICK else SLOW))
        if row in (*NOT_USUAL, *ON_THREE):
            chosen.append(pytest.param(row, most, marks=SLOW))
    return chosen


@pytest.mark.parametrize(("row", "column"), cells_of(ROWS))
def test_owners_end_as_one_process(cells, column, row):
    cells.check(row, column)
