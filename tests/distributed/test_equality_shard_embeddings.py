"""The equality matrix: embeddings of which each rank has some rows."""

import numpy as np
import pytest
from equality_matrix import COLUMNS, SLOW
from equality_models import EPOCHS, compiled, in_float32, optimizer, wait_for_chief
from test_equality_optimizers import loss_scaled

import tfdist

# More than a small table of the rows below has, and less than each other one.
BYTES = 1000
TOKENS, WIDTH = 40, 6
# The last batch of 32 has one row: most ranks have none.
ROWS_OF_DATA, BATCH = 65, 16
TOLERANCE = 1e-9


def dividing(strategy, **options):
    """Return a strategy over the same processes that divides large tables."""
    if tfdist.size() == 1:
        return strategy
    return tfdist.strategies.AllReduceStrategy(
        strategy.collective, shard_embeddings=BYTES, **options
    )


def tokens(rows=ROWS_OF_DATA):
    """Numbers of rows, some of them often, and what to predict."""
    import keras

    random = np.random.default_rng(5)
    x = random.integers(0, TOKENS, (rows, 5))
    x[:, 0], x[::3, 1] = 3, 0
    return x, random.normal(size=(rows, 1)).astype(keras.config.floatx())


def one_table(**options):
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(TOKENS, WIDTH, **options),
            layers.Flatten(),
            layers.Dense(4, "tanh"),
            layers.Dense(1),
        ]
    )


def several_tables():
    """A table that is looked up twice and has a mask, another, and a small one."""
    import keras

    layers = keras.layers
    inputs = keras.Input((5,), dtype="int32")
    shared = layers.Embedding(TOKENS, WIDTH, mask_zero=True)
    other = layers.Embedding(TOKENS + 1, 4, embeddings_initializer="ones")
    small = layers.Embedding(TOKENS, 2)
    from_the_end = layers.Lambda(lambda x: x[:, 1:3] - TOKENS)
    joined = layers.Concatenate()(
        [
            layers.LSTM(3)(shared(inputs)),
            layers.Flatten()(shared(from_the_end(inputs))),
            layers.GlobalMaxPooling1D()(other(inputs)),
            layers.Flatten()(small(inputs)),
        ]
    )
    return keras.Model(inputs, layers.Dense(1)(joined))


def composite():
    """A subclassed model whose ids are in a ragged and in a sparse tensor."""
    import keras
    import tensorflow as tf

    class Composite(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = keras.layers.Embedding(TOKENS, WIDTH)
            self.other = keras.layers.Embedding(TOKENS, WIDTH)
            self.classes = keras.layers.Dense(1)

        def build(self, shape):
            self.table.build()
            self.other.build()
            self.classes.build((None, 2 * WIDTH))

        def call(self, x):
            x = tf.cast(x, tf.int32)
            ragged = self.table(tf.RaggedTensor.from_tensor(x, padding=0))
            mean = tf.reduce_sum(ragged.to_tensor(shape=(None, 5, WIDTH)), 1)
            sparse = self.other(tf.sparse.from_dense(x))
            return self.classes(tf.concat([mean, tf.reduce_sum(sparse, 1)], 1))

    return Composite()


def table_alone():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(TOKENS * WIDTH, 1),
            layers.GlobalAveragePooling1D(),
        ]
    )


def frozen():
    return one_table(trainable=False)


def given_weights():
    return one_table(weights=np.arange(TOKENS * WIDTH).reshape(TOKENS, WIDTH) / 100)


def variables_of_file(model, make, **options):
    """Return the weights and the optimizer's variables in a file, by plain Keras."""
    model.save_weights("saved.weights.h5")
    wait_for_chief(model.distribute_strategy)
    loaded = compiled(make(), loss="mse", **options)
    loaded.build((None, 5))
    loaded.optimizer.build(loaded.trainable_variables)
    loaded.load_weights("saved.weights.h5")
    # No rank may write the next file, before all have read this one.
    wait_for_chief(model.distribute_strategy)
    # Within a cycle of accumulation, the chief saves the sums of its own rows.
    of_optimizer = {
        f"{i} {variable.name}": np.array(variable)
        for i, variable in enumerate(loaded.optimizer.variables)
        if "gradient_accumulator" not in variable.name
    }
    return {"weights": loaded.get_weights(), "optimizer": of_optimizer}


def fitting(make=one_table, *, batch=BATCH, spoil=None, how=(), **options):
    """Return a row: `fit`, `evaluate`, `predict`, and what the model's file has."""

    def row(strategy):
        x, y = tokens()
        if spoil is not None:
            spoil(y)
        strategy = dividing(strategy, **dict(how))
        with strategy.scope():
            model = compiled(make(), loss="mse", metrics=["mae"], **options)
        history = model.fit(x, y, batch, EPOCHS, verbose=0)
        kept = {"optimizer": options["optimizer"]} if "optimizer" in options else {}
        return {
            **variables_of_file(model, make, **kept),
            "loss": history.history["loss"],
            "evaluate": model.evaluate(x, y, batch, verbose=0),
            "predict": model.predict(x, batch_size=batch, verbose=0),
            "by_rank": [
                variable._value.shape[0]
                for variable in model.variables
                if variable.shape[0] == TOKENS
            ],
        }

    return row


def one_infinite(y):
    """Make the gradient of the rows of one example infinite."""
    y[20] = np.inf


def looped(strategy):
    """A custom loop, without Keras's `fit`."""
    import tensorflow as tf

    strategy = dividing(strategy)
    x, y = tokens(64)
    with strategy.scope():
        model = compiled(one_table(), optimizer("Adam", global_clipnorm=0.1))
        model.optimizer.build(model.trainable_variables)
        rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
        batches = strategy.experimental_distribute_dataset(rows)

    @tf.function
    def step(inputs, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(inputs) - labels) ** 2) / BATCH
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)

    for inputs, labels in batches:
        strategy.run(step, args=(inputs, labels))
    return variables_of_file(model, one_table)


def lazy():
    return tfdist.optimizers.LazyAdam(0.05)


averaged = optimizer("Adam", use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)
accumulated = optimizer("Adam", gradient_accumulation_steps=3)
sharded = {"shard_optimizer": True}

ROWS = {
    "several tables": fitting(several_tables, optimizer=optimizer("Adagrad", 0.1)),
    "ragged and sparse ids": fitting(composite),
    "LazyAdam, one row left": fitting(batch=32, optimizer=lazy),
    "global_clipnorm": fitting(
        several_tables, optimizer=optimizer("Adam", global_clipnorm=0.01)
    ),
    "clipvalue, decay": fitting(
        optimizer=optimizer("AdamW", clipvalue=0.001, weight_decay=0.1)
    ),
    "averages": fitting(optimizer=averaged),
    "accumulated": fitting(optimizer=accumulated),
    "one row infinite": fitting(
        table_alone, spoil=one_infinite, optimizer=loss_scaled(initial_scale=8.0)
    ),
    "loss scaling": fitting(optimizer=loss_scaled(optimizer("Adam", clipnorm=0.01))),
    "shard_optimizer": fitting(several_tables, how=sharded),
    "run_eagerly": fitting(run_eagerly=True),
    "jit_compile": in_float32(fitting(several_tables, jit_compile=True)),
    "frozen": fitting(frozen),
    "given weights": fitting(given_weights),
    "a custom loop": looped,
}
# What `make test` runs; the others differ from one of them in less.
QUICK = (
    "LazyAdam, one row left",
    "a custom loop",
    "global_clipnorm",
    "several tables",
    "shard_optimizer",
)


# Another row has the subject of each, or most of it.
VARIANTS = (
    "clipvalue, decay",
    "run_eagerly",
    "jit_compile",
    "frozen",
    "given weights",
    "loss scaling",
)


# Options, of which two ranks say as much as three.
ON_TWO = (
    "accumulated",
    "averages",
    "global_clipnorm",
    "one row infinite",
    "shard_optimizer",
)


def cells_of(rows):
    """Return each row with its columns: processes only, and for variants the most."""
    usual, most = COLUMNS
    chosen = [
        pytest.param(row, usual, marks=() if row in QUICK else SLOW)
        for row in rows
        if row not in VARIANTS
    ]
    others = [row for row in rows if row not in ON_TWO]
    return [*chosen, *(pytest.param(row, most, marks=SLOW) for row in others)]


@pytest.mark.parametrize(("row", "column"), cells_of(ROWS))
def test_divided_tables_end_as_on_one_process(cells, column, row):
    tolerance = None if row == "jit_compile" else TOLERANCE
    cells.check(row, column, tolerance)


@pytest.mark.parametrize("column", [COLUMNS[0]])
@pytest.mark.parametrize("row", ["several tables"])
def test_each_rank_keeps_its_rows_of_large_tables(cells, column, row):
    for ended in cells.by_rank(row, column):
        divided, *small = ended["by_rank"]
        assert divided == TOKENS // column
        assert all(rows == TOKENS for rows in small)
