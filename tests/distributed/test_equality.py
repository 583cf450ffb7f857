"""N equals 1: the same program, on one process and on several, ends with equal weights.

Each row of `CASES` is a way to train. It runs under plain Keras in one process, which
is the truth, and under tfdist in two and in three; what they end with is compared. Add
a row to get all of that.
"""

import hashlib
import os

import numpy as np
import pytest

import tfdist

EVEN, UNEVEN = 96, 101
BATCH = 16
EPOCHS = 2


def data(rows, floatx):
    """Two classes that eight numbers tell apart."""
    random = np.random.default_rng(7)
    x = random.normal(size=(rows, 8)).astype(floatx)
    return x, (x[:, :1] + x[:, 1:2] ** 2 > 0.5).astype("int64")


def sequential():
    import keras

    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def functional():
    import keras

    inputs = keras.Input((8,))
    one = keras.layers.Dense(8, activation="tanh")(inputs)
    other = keras.layers.Dense(4)(inputs)
    joined = keras.layers.Concatenate()([one, other])
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(joined))


def subclassed():
    import keras

    class Classifier(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = keras.layers.Dense(8, activation="tanh")
            self.classes = keras.layers.Dense(1, activation="sigmoid")

        def call(self, inputs):
            return self.classes(self.hidden(inputs))

    return Classifier()


def embedding():
    """A model whose gradients are sparse, on integers made of the data's signs."""
    import keras

    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Lambda(lambda x: keras.ops.cast(x > 0, "int32")),
            keras.layers.Embedding(3, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def sgd():
    import keras

    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam():
    import keras

    return keras.optimizers.Adam(0.01)


def clipped():
    import keras

    return keras.optimizers.SGD(1.0, global_clipnorm=0.1)


def accumulated():
    import keras

    return keras.optimizers.Adam(0.01, gradient_accumulation_steps=3)


def averaged():
    import keras

    return keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=3)


def loss_scaled():
    import keras

    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))


def arrays(x, y):
    return {"x": x, "y": y, "batch_size": BATCH}


def arrays_with_weights(x, y):
    return {**arrays(x, y), "sample_weight": np.linspace(0.0, 2.0, len(x))}


def arrays_with_validation(x, y):
    return {**arrays(x, y), "validation_data": (x[:37], y[:37])}


def dataset(x, y):
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((x, y))
    return {"x": rows.shuffle(len(x), seed=3).batch(BATCH)}


def dataset_of_unknown_length(x, y):
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((x, y))
    return {"x": rows.filter(lambda x, y: x[2] < 1.0).batch(BATCH)}


def endless_dataset(x, y):
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((x, y))
    return {"x": rows.batch(BATCH).repeat(), "steps_per_epoch": 5}


def generator(x, y):
    def batches():
        while True:
            for start in range(0, len(x), BATCH):
                yield x[start : start + BATCH], y[start : start + BATCH]

    return {"x": batches(), "steps_per_epoch": -(-len(x) // BATCH)}


def py_dataset(x, y, **options):
    import keras

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return -(-len(x) // BATCH)

        def __getitem__(self, index):
            rows = slice(index * BATCH, index * BATCH + BATCH)
            return x[rows], y[rows]

    return {"x": Batches(**options), "shuffle": False}


def py_dataset_with_workers(x, y):
    return py_dataset(x, y, workers=2)


# Name -> model, optimizer, input, rows, what else compile gets.
CASES = {
    "sequential, sgd, even": (sequential, sgd, arrays, EVEN, {}),
    "sequential, sgd, uneven": (sequential, sgd, arrays, UNEVEN, {}),
    "sequential, adam, even": (sequential, adam, arrays, EVEN, {}),
    "sequential, adam, uneven": (sequential, adam, arrays, UNEVEN, {}),
    "functional, sgd, uneven": (functional, sgd, arrays, UNEVEN, {}),
    "functional, adam, even": (functional, adam, arrays, EVEN, {}),
    "functional, adam, uneven": (functional, adam, arrays, UNEVEN, {}),
    "subclassed, sgd, uneven": (subclassed, sgd, arrays, UNEVEN, {}),
    "subclassed, adam, even": (subclassed, adam, arrays, EVEN, {}),
    "subclassed, adam, uneven": (subclassed, adam, arrays, UNEVEN, {}),
    "one row more than a batch": (sequential, adam, arrays, 3 * BATCH + 1, {}),
    "fewer rows than ranks": (sequential, adam, arrays, 2, {}),
    "validation": (sequential, adam, arrays_with_validation, UNEVEN, {}),
    "sample weights": (sequential, adam, arrays_with_weights, UNEVEN, {}),
    "tf.data": (sequential, adam, dataset, UNEVEN, {}),
    "tf.data, unknown length": (sequential, adam, dataset_of_unknown_length, 101, {}),
    "tf.data, endless": (sequential, adam, endless_dataset, UNEVEN, {}),
    "generator": (sequential, adam, generator, UNEVEN, {}),
    "PyDataset": (functional, adam, py_dataset, UNEVEN, {}),
    "PyDataset, workers": (sequential, adam, py_dataset_with_workers, UNEVEN, {}),
    "sparse gradients": (embedding, sgd, arrays, UNEVEN, {}),
    "eager": (sequential, adam, arrays, UNEVEN, {"run_eagerly": True}),
    "steps_per_execution": (sequential, adam, arrays, 101, {"steps_per_execution": 3}),
    "global_clipnorm": (sequential, clipped, arrays, UNEVEN, {}),
    "gradient accumulation": (sequential, accumulated, arrays, UNEVEN, {}),
    "exponential moving average": (sequential, averaged, arrays, UNEVEN, {}),
    "loss scaling": (sequential, loss_scaled, arrays, UNEVEN, {}),
}
# All of it in float64, where any wrong term shows; the common ways in float32 too.
NAMES = {
    "float64": tuple(CASES),
    "float32": (
        "sequential, sgd, even",
        "functional, adam, uneven",
        "subclassed, adam, uneven",
        "sparse gradients",
    ),
}
LOOPS = ("train_on_batch", "custom loop")
ROWS = [(name, floatx) for floatx in NAMES for name in (*NAMES[floatx], *LOOPS)]


def fit(strategy, case, floatx):
    """Train by fit and return everything that must be equal."""
    import keras

    model, optimizer, feed, rows, options = case
    keras.utils.set_random_seed(1)
    x, y = data(rows, floatx)
    with strategy.scope():
        model = model()
        model.compile(
            optimizer=optimizer(),
            loss="binary_crossentropy",
            metrics=["accuracy", keras.metrics.AUC()],
            **options,
        )
    history = model.fit(**feed(x, y), epochs=EPOCHS, verbose=0)
    evaluated = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    return {
        "weights": model.get_weights(),
        "optimizer": [
            np.array(variable)
            for variable in model.optimizer.variables
            # A step that is not complete is one of all ranks together.
            if "gradient_accumulator" not in variable.path
        ],
        "history": [np.array(history.history[key]) for key in sorted(history.history)],
        "evaluate": [np.array(evaluated[key]) for key in sorted(evaluated)],
        "predict": [model.predict(x, batch_size=BATCH, verbose=0)],
    }


def train_on_batch(strategy, floatx):
    """Train by single batches, of which each rank is given its part."""
    import keras

    keras.utils.set_random_seed(1)
    x, y = data(80, floatx)
    with strategy.scope():
        model = sequential()
        model.compile(optimizer=adam(), loss="binary_crossentropy")
    for start in range(0, 80, BATCH):
        # Unequal parts, so that a mean of means would show.
        bounds = [start, start + 2, start + 9, start + BATCH]
        if tfdist.size() == 1:
            rows = slice(start, start + BATCH)
        elif tfdist.size() == 2:
            rows = slice(
                *([bounds[0], bounds[1]], [bounds[1], bounds[3]])[tfdist.rank()]
            )
        else:
            rows = slice(*bounds[tfdist.rank() : tfdist.rank() + 2])
        model.train_on_batch(x[rows], y[rows])
    return {"weights": model.get_weights()}


def custom_loop(strategy, floatx):
    """Train by a loop as tf.distribute's guide writes it."""
    import keras
    import tensorflow as tf

    # Other ranks start from other weights, and must not go on from them.
    keras.utils.set_random_seed(1 + tfdist.rank())
    x, y = data(UNEVEN, floatx)
    with strategy.scope():
        model = functional()
        optimizer = adam()
        optimizer.build(model.trainable_variables)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    loss_of = keras.losses.BinaryCrossentropy(reduction="none")

    @tf.function
    def step(batch, rows):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                losses = loss_of(y, model(x, training=True))
                loss = tf.reduce_sum(losses) / tf.cast(rows, losses.dtype)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(
                zip(gradients, model.trainable_variables, strict=True)
            )
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    losses = []
    for batch, (x, _) in zip(
        strategy.experimental_distribute_dataset(batches), batches, strict=True
    ):
        losses.append(step(batch, len(x)).numpy())
    return {"weights": model.get_weights(), "history": [np.array(losses)]}


def run_everything(names_by_floatx):
    """Run every case in this process; what one rank has at the end of each."""
    import keras
    import tensorflow as tf

    if "TF_CONFIG" in os.environ:
        strategy = tfdist.strategies.AllReduceStrategy(timeout_seconds=60)
    else:
        strategy = tf.distribute.get_strategy()
    results = {}
    for floatx, names in names_by_floatx.items():
        keras.config.set_floatx(floatx)
        for name in names:
            results[name, floatx] = fit(strategy, CASES[name], floatx)
        results["train_on_batch", floatx] = train_on_batch(strategy, floatx)
        results["custom loop", floatx] = custom_loop(strategy, floatx)
    return results


def run_plainly(names_by_floatx):
    """The same in plain Keras: no cluster, and no strategy."""
    del os.environ["TF_CONFIG"]
    for name in [name for name in os.environ if name.startswith("TFDIST_")]:
        del os.environ[name]
    return run_everything(names_by_floatx)


@pytest.fixture(scope="module")
def results():
    """Everything that every number of processes ends with, by that number."""
    args = (NAMES,)
    plain = tfdist.testing.cluster(run_plainly, size=1, args=args, timeout_seconds=280)
    by_size = {
        size: tfdist.testing.cluster(
            run_everything, size=size, args=args, timeout_seconds=280
        ).values
        for size in (1, 2, 3)
    }
    return {"plain": plain.values, **by_size}


def digest(result):
    """A number for all bits of a result."""
    bits = hashlib.sha256()
    for kind in sorted(result):
        for array in result[kind]:
            bits.update(np.ascontiguousarray(array).tobytes())
    return bits.hexdigest()


@pytest.mark.parametrize(("case", "floatx"), ROWS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_n_processes_end_as_one(results, size, case, floatx):
    expected = results["plain"][0][case, floatx]
    tolerance = {"float64": 1e-6, "float32": 1e-5}[floatx]
    for kind, arrays_ in results[size][0][case, floatx].items():
        assert len(arrays_) == len(expected[kind]), kind
        for array, right in zip(arrays_, expected[kind], strict=True):
            # Rounding of a weight near zero is relative to what it is a sum of.
            floor = tolerance * max(1e-3, float(np.abs(right).max(initial=0.0)))
            np.testing.assert_allclose(
                array, right, rtol=tolerance, atol=floor, err_msg=kind
            )


@pytest.mark.parametrize(("case", "floatx"), ROWS)
@pytest.mark.parametrize("size", [2, 3])
def test_all_ranks_hold_the_same_bits(results, size, case, floatx):
    digests = {digest(values[case, floatx]) for values in results[size]}

    assert len(digests) == 1
