"""What `fit` and its kin do under asynchronous parameter servers, and refuse to do."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from equality_models import BATCH, compiled, data, optimizer, sequential, sgd
from parameter_server_jobs import Failure, run, run_rows

EXAMPLES, STEPS, EPOCHS = 1601, 101, 4


def made(strategy, model=sequential, **options):
    """Make and compile a model as one should."""
    with strategy.scope():
        return compiled(model(), **options)


def many_steps(strategy):
    x, y = data(EXAMPLES)
    model = made(strategy, metrics=["accuracy"])
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    return {
        "iterations": int(model.optimizer.iterations.numpy()),
        "accuracies": history.history["accuracy"],
        "losses": history.history["loss"],
        "staleness": strategy.staleness(),
        "predict": model.predict(x, batch_size=BATCH, verbose=0),
        "call": np.array(model(x)),
        "evaluate": model.evaluate(x, y, batch_size=BATCH, verbose=0),
    }


def several_steps_in_one_go(strategy):
    x, y = data(EXAMPLES)
    model = made(strategy, metrics=["accuracy"], steps_per_execution=4)
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return {
        "iterations": int(model.optimizer.iterations.numpy()),
        "accuracies": history.history["accuracy"],
    }


def single_batches(strategy):
    x, y = data()
    model = made(strategy, metrics=["accuracy"])
    first = np.array(model(x))
    train = [model.train_on_batch(x, y, return_dict=True) for _ in range(3)]
    return {
        "iterations": int(model.optimizer.iterations.numpy()),
        "first": first,
        "train": train,
        "test": model.test_on_batch(x, y, return_dict=True),
        "predict": model.predict_on_batch(x),
        "call": np.array(model(x)),
    }


def callbacks(strategy):
    import keras

    x, y = data()
    model = made(strategy)
    history = model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=9,
        verbose=0,
        validation_data=(x, y),
        callbacks=[
            keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (epoch + 1)),
            keras.callbacks.EarlyStopping("val_loss", min_delta=9.0, patience=2),
            keras.callbacks.ModelCheckpoint("{epoch}.keras"),
        ],
    )
    return {
        "epochs": history.epoch,
        "rates": history.history["learning_rate"],
        "rate": float(model.optimizer.learning_rate.numpy()),
        "checkpoints": sorted(path.name for path in Path().glob("*.keras")),
        "file": Path("3.keras").read_bytes(),
        "iterations": int(model.optimizer.iterations.numpy()),
        "weights": model.get_weights(),
        "predict": model.predict(x, verbose=0),
    }


def saved_and_loaded(strategy):
    import keras

    x, y = data()
    model = made(strategy, optimizer=optimizer("Adam", use_ema=True))
    model.fit(x, y, batch_size=BATCH, verbose=0)
    model.save("model.keras")
    model.save_weights("model.weights.h5")
    with strategy.scope():
        loaded = keras.models.load_model("model.keras")
    before = [np.array(variable) for variable in loaded.optimizer.variables]
    loaded.fit(x, y, batch_size=BATCH, verbose=0)
    other = made(strategy)
    other.load_weights("model.weights.h5")
    return {
        "optimizer": [np.array(variable) for variable in model.optimizer.variables],
        "loaded optimizer": before,
        "iterations": int(loaded.optimizer.iterations.numpy()),
        "weights": model.get_weights(),
        "loaded weights": other.get_weights(),
    }


def digits(strategy):
    import keras
    from sklearn.datasets import load_digits

    keras.config.set_floatx("float32")
    x, y = load_digits(return_X_y=True)
    # The last of them are by writers whom the others say little of.
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16.0).astype("float32"), y[order]
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        compiled(model, loss=loss, metrics=["accuracy"])
    model.fit(x[:1437], y[:1437], batch_size=32, epochs=6, verbose=0)
    return {"accuracy": model.evaluate(x[1437:], y[1437:], verbose=0)[1]}


# -- what is refused, or goes wrong -----------------------------------------------


def error_of(fit):
    """Return what a `fit` raises, as a program without a handler would print it."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fit()
    notes = getattr(caught.value, "__notes__", [])
    return [caught.type.__name__, str(caught.value), *notes]


def refused(options=None, make=sequential):
    """Return a row of a model that cannot be trained."""

    def row(strategy):
        x, y = data()
        model = made(strategy, make, **(options or {}))
        return {"error": error_of(lambda: model.fit(x, y, verbose=0))}

    return row


def made_outside(strategy):
    del strategy
    x, y = data()
    model = compiled(sequential())
    return {"error": error_of(lambda: model.fit(x, y, verbose=0))}


def loss_scaled():
    import keras

    return keras.optimizers.LossScaleOptimizer(sgd())


def with_two_updates():
    import keras
    import tensorflow as tf

    class Twice(keras.Sequential):
        def train_step(self, data):
            x, y = data
            for _ in range(2):
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(x, y, self(x, training=True))
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    return Twice(sequential().layers)


def asserting():
    import keras
    import tensorflow as tf

    class Small(keras.layers.Layer):
        def call(self, inputs):
            tf.debugging.assert_less(inputs, tf.cast(1.5, inputs.dtype), "too large")
            return inputs

    return keras.Sequential(
        [keras.Input((8,)), Small(), keras.layers.Dense(1, activation="sigmoid")]
    )


def a_label_out_of_range(strategy):
    import keras

    x, _ = data()
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        compiled(model, loss=loss)
    labels = np.full(len(x), 7)
    model.fit(x[:BATCH], labels[:BATCH] % 3, verbose=0)
    return {"error": error_of(lambda: model.fit(x, labels, verbose=0))}


def fit_after_errors(strategy):
    return several_steps_in_one_go(strategy)


ROWS = {
    "many steps": many_steps,
    "several steps in one go": several_steps_in_one_go,
    "single batches": single_batches,
    "callbacks": callbacks,
    "saved and loaded": saved_and_loaded,
    "digits": digits,
    "made outside": made_outside,
    "run_eagerly": refused({"run_eagerly": True}),
    "jit_compile": refused({"jit_compile": True}),
    "LossScaleOptimizer": refused({"optimizer": loss_scaled}),
    "two updates": refused(make=with_two_updates),
    "assertion": refused(make=asserting),
    "label": a_label_out_of_range,
    "fit after errors": fit_after_errors,
}
REFUSED = {
    "made outside": "was made outside of strategy.scope()",
    "run_eagerly": "run_eagerly=True is not for parameter servers",
    "jit_compile": "jit_compile=True is not for parameter servers",
    "LossScaleOptimizer": "A loss scale may change between a gradient and its update",
    "two updates": "A step must apply one optimizer, once",
}


def run_async():
    return run_rows(ROWS, ROWS, consistency="async")


def load_alone(content):
    """Load what a checkpoint holds in plain Keras, and go on with it."""
    import tempfile

    import keras

    keras.config.set_floatx("float64")
    x, y = data()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.keras").write_bytes(content)
        model = keras.models.load_model(Path(folder) / "model.keras")
    found = {
        "weights": model.get_weights(),
        "predict": model.predict(x, verbose=0),
        "iterations": int(model.optimizer.iterations.numpy()),
    }
    model.fit(x, y, batch_size=BATCH, verbose=0)
    return found


def tf_config(jobs, task):
    return json.dumps({"cluster": jobs, "task": {"type": task, "index": 0}})


def make_what_cannot_be():
    """Make strategies that cannot be, in one process."""
    import tensorflow as tf

    from tfdist.strategies import ParameterServerStrategy

    jobs = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}
    # What the launcher has told this process, which is to seem started by hand.
    for name in [name for name in os.environ if name.startswith("TFDIST_")]:
        del os.environ[name]
    errors = {}
    for missing in jobs:
        rest = {job: jobs[job] for job in jobs if job != missing}
        task = "worker" if missing == "chief" else "chief"
        os.environ["TF_CONFIG"] = tf_config(rest, task)
        errors[missing] = error_of(ParameterServerStrategy)
    tf.zeros([])
    os.environ["TF_CONFIG"] = tf_config(jobs, "chief")
    errors["late"] = error_of(ParameterServerStrategy)
    return errors


@pytest.fixture(scope="module")
def rows():
    return run(run_async)


def ended(rows, name):
    """Return what a row ended with; fail if it raised."""
    assert not isinstance(rows[name], Failure), rows[name]
    return rows[name]


def is_count(share):
    """Say whether a share of the examples is that of a whole number of them."""
    return share * EXAMPLES == pytest.approx(round(share * EXAMPLES), abs=1e-2)


def test_no_update_and_no_example_is_lost(rows):
    found = ended(rows, "many steps")

    assert found["iterations"] == EPOCHS * STEPS
    assert sum(found["staleness"].values()) == EPOCHS * STEPS
    assert all(map(is_count, found["accuracies"]))
    assert found["losses"][-1] < found["losses"][0]


def test_predictions_are_in_order_and_evaluation_is_exact(rows):
    found = ended(rows, "many steps")
    _, y = data(EXAMPLES)
    chance = found["predict"]
    losses = -np.where(y == 1, np.log(chance), np.log1p(-chance))
    right = ((chance > 0.5) == (y == 1)).mean()

    np.testing.assert_allclose(chance, found["call"], rtol=1e-12)
    assert found["evaluate"] == pytest.approx([losses.mean(), right], abs=1e-6)


@pytest.mark.parametrize("row", ["several steps in one go", "fit after errors"])
def test_steps_in_one_go_are_counted_one_by_one(rows, row):
    found = ended(rows, row)

    assert found["iterations"] == 2 * STEPS
    assert all(map(is_count, found["accuracies"]))


def test_single_batches(rows):
    found = ended(rows, "single batches")
    _, y = data()
    first = found["first"]
    losses = -np.where(y == 1, np.log(first), np.log1p(-first))

    assert found["iterations"] == 3
    assert found["train"][0]["loss"] == pytest.approx(losses.mean(), abs=1e-6)
    assert found["test"]["loss"] < found["train"][0]["loss"]
    np.testing.assert_allclose(found["predict"], found["call"], rtol=1e-12)


def test_callbacks_see_whole_epochs(rows):
    found = ended(rows, "callbacks")

    assert found["epochs"] == [0, 1, 2]
    assert found["rates"] == pytest.approx([0.01, 0.005, 0.01 / 3])
    assert found["rate"] == pytest.approx(0.01 / 3)
    assert found["checkpoints"] == ["1.keras", "2.keras", "3.keras"]
    assert found["iterations"] == 3 * 7


def test_a_checkpoint_is_loaded_in_plain_keras(rows):
    found = ended(rows, "callbacks")
    loaded = run(load_alone, found["file"], workers=None)

    for array, right in zip(loaded["weights"], found["weights"], strict=True):
        np.testing.assert_array_equal(array, right)
    np.testing.assert_allclose(loaded["predict"], found["predict"], rtol=1e-12)
    assert loaded["iterations"] == found["iterations"]


def test_what_is_saved_is_loaded(rows):
    found = ended(rows, "saved and loaded")

    assert found["iterations"] == 2 * 7
    for one, other in (
        (found["optimizer"], found["loaded optimizer"]),
        (found["weights"], found["loaded weights"]),
    ):
        for array, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(array, right)


def test_digits_are_learned(rows):
    assert ended(rows, "digits")["accuracy"] > 0.9


@pytest.mark.parametrize("row", REFUSED)
def test_what_cannot_be_honoured_is_refused(rows, row):
    kind, text, *_ = ended(rows, row)["error"]

    assert kind == ("RuntimeError" if row == "made outside" else "ValueError")
    assert REFUSED[row] in text


@pytest.mark.parametrize(
    ("row", "words"), [("assertion", "too large"), ("label", "label")]
)
def test_an_error_of_a_worker_comes_back_with_its_name(rows, row, words):
    kind, text, *notes = ended(rows, row)["error"]

    assert kind == "InvalidArgumentError"
    assert words in text
    (note,) = notes
    assert note.startswith("tfdist: this happened on worker ")


def test_a_strategy_that_cannot_be_is_refused():
    errors = run(make_what_cannot_be, workers=None)

    for missing in ("chief", "worker", "ps"):
        kind, text, *_ = errors[missing]
        assert kind == "ValueError"
        assert missing in text
    assert errors["late"][0] == "RuntimeError"
