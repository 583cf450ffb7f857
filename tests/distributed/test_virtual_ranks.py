"""With `virtual_ranks`, any number of processes end with the same bits."""

import hashlib

import numpy as np
import pytest

import tfdist

SECONDS = 400
EPOCHS = 2
# The last batch of an epoch has three rows: fewer than there are parts.
ROWS, BATCH = 99, 48
HOROVOD = pytest.mark.requires("horovodrun")


def data():
    drawn = np.random.default_rng(1)
    x = drawn.normal(size=(ROWS, 16)).astype("float32")
    return x, (x.sum(1) > 0).astype("int32") + 2 * (x[:, 0] > 0)


def dense():
    from keras import layers, optimizers

    inner = [layers.Dense(24, "relu", kernel_regularizer="l2")]
    return inner, optimizers.AdamW(1e-2, use_ema=True, ema_overwrite_frequency=2)


def convolution():
    from keras import layers, optimizers

    convolved = layers.Conv2D(8, 3, activation="relu")
    inner = [
        layers.Reshape((4, 4, 1)),
        convolved,
        layers.Dropout(0.3),
        layers.Flatten(),
    ]
    return inner, optimizers.Lamb(1e-2, global_clipnorm=0.5)


def recurrent():
    from keras import layers, optimizers

    inner = [layers.Reshape((4, 4)), layers.LSTM(8, dropout=0.2)]
    return inner, optimizers.Adam(1e-2, gradient_accumulation_steps=2)


def embedding():
    from keras import layers, optimizers

    binned = layers.Discretization([-1.0, 0.0, 1.0])
    inner = [binned, layers.Embedding(4, 8), layers.GlobalAveragePooling1D()]
    return inner, optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1)


def attention():
    import keras
    from keras import layers, optimizers

    class Attended(layers.Layer):
        def __init__(self):
            super().__init__()
            self.attention = layers.MultiHeadAttention(2, 4, dropout=0.1)

        def build(self, shape):
            self.attention.build(shape, shape)

        def call(self, inputs):
            return inputs + self.attention(inputs, inputs)

    keras.mixed_precision.set_dtype_policy("mixed_float16")
    inner = [layers.Reshape((8, 2)), layers.Dense(8), Attended()]
    inner += [layers.LayerNormalization(), layers.GlobalAveragePooling1D()]
    return inner, optimizers.Adam(1e-2)


CASES = (dense, convolution, recurrent, embedding, attention)
PLACES = [
    (2, "tensorflow", CASES),
    # The rest of these is left to `make test-all`.
    (2, "mpi", (convolution,)),
    (4, "tensorflow", (convolution,)),
    pytest.param(2, "mpi", CASES, marks=pytest.mark.slow),
    pytest.param(4, "tensorflow", CASES, marks=pytest.mark.slow),
    pytest.param(4, "mpi", CASES, marks=pytest.mark.slow),
    pytest.param(8, "tensorflow", CASES, marks=pytest.mark.slow),
    pytest.param(2, "horovod", CASES, marks=[pytest.mark.slow, HOROVOD]),
    pytest.param(4, "horovod", CASES, marks=[pytest.mark.slow, HOROVOD]),
]


def made(case):
    """Return a compiled model of a case."""
    import keras

    keras.utils.set_random_seed(1)
    keras.mixed_precision.set_dtype_policy("float32")
    inner, optimizer = case()
    last = keras.layers.Dense(4, "softmax", dtype="float32")
    model = keras.Sequential([keras.Input((16,)), *inner, last])
    metrics = ["accuracy", keras.metrics.SparseCategoricalCrossentropy()]
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=metrics)
    return model


def trained(model, epochs=EPOCHS, **options):
    """Return the bits that a fit ends with, and its history."""
    x, y = data()
    history = model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=epochs,
        validation_data=(x, y),
        verbose=0,
        **options,
    ).history
    bits = {
        "weights": digest(model.weights),
        "optimizer": digest(model.optimizer.variables),
        "metrics": digest(model.metrics_variables),
    }
    return bits | {name: values[-1].hex() for name, values in history.items()}


def digest(variables):
    """Return the SHA-256 of variables."""
    together = hashlib.sha256()
    for variable in variables:
        together.update(variable.numpy().tobytes())
    return together.hexdigest()


def run_cases(collective, names):
    """Return what each case ends with; on one process also plain Keras's weights."""
    strategy = tfdist.strategies.AllReduceStrategy(collective, virtual_ranks=8)
    ended, weights = {}, []
    for case in (case for case in CASES if case.__name__ in names):
        with strategy.scope():
            model = made(case)
        ended[case.__name__] = trained(model)
        if case is dense and tfdist.size() == 1:
            plain = made(case)
            trained(plain)
            weights = [model.get_weights(), plain.get_weights()]
    return ended, weights


def run_restarted(folder, epochs):
    """Go on from the state in a folder, and leave the last one there."""
    strategy = tfdist.strategies.AllReduceStrategy(virtual_ranks=8)
    with strategy.scope():
        model = made(convolution)
    backup = tfdist.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    return trained(model, epochs, callbacks=[backup])


def cluster(target, size, *args, collective="tensorflow"):
    return tfdist.testing.cluster(
        target, size=size, args=args, timeout_seconds=SECONDS, collective=collective
    )


@pytest.fixture(scope="module")
def alone():
    """What the cases end with on one process."""
    names = [case.__name__ for case in CASES]
    return cluster(run_cases, 1, "tensorflow", names).values[0]


@pytest.mark.parametrize(("size", "collective", "cases"), PLACES)
def test_any_number_of_processes_end_with_the_same_bits(alone, size, collective, cases):
    names = [case.__name__ for case in cases]
    right = {name: alone[0][name] for name in names}
    result = cluster(run_cases, size, collective, names, collective=collective)

    for rank, (ended, _) in enumerate(result.values):
        assert ended == right, f"rank {rank}"
    said = "tfdist: virtual_ranks=8 and 1 intra-op thread in each process."
    assert [said in log for log in result.logs] == [True] + [False] * (size - 1)


def test_parts_add_up_to_the_weights_of_plain_keras(alone):
    _, (with_parts, plain) = alone

    for found, right in zip(with_parts, plain, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-6)


def test_a_restart_on_other_numbers_of_processes_keeps_the_bits(alone, tmp_path):
    right, _ = alone
    folder = str(tmp_path)
    cluster(run_restarted, 2, folder, 1)
    fewer = cluster(run_restarted, 1, folder, EPOCHS)

    assert fewer.values == (right["convolution"],)
    assert "tfdist: goes on after 3 steps" in fewer.logs[0]


@pytest.mark.slow
def test_a_restart_on_more_processes_keeps_the_bits(alone, tmp_path):
    right, _ = alone
    folder = str(tmp_path)
    cluster(run_restarted, 1, folder, 1)

    assert (
        cluster(run_restarted, 4, folder, EPOCHS).values == (right["convolution"],) * 4
    )
