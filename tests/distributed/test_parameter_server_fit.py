"""What `fit` and its kin do under asynchronous parameter servers, and refuse to do."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from equality_models import BATCH, compiled, data, optimizer, sequential
from parameter_server_jobs import run, run_rows, succeeded

EXAMPLES, STEPS = 401, 26


def made(strategy, model=sequential, **options):
    """Make and compile a model as one should."""
    with strategy.scope():
        return compiled(model(), **options)


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


def noise_in_a_step(strategy):
    """Train with random numbers of Keras's own generator, which the step creates."""
    import keras
    import tensorflow as tf

    class Noisy(keras.Sequential):
        def train_step(self, batch):
            x, y = batch
            return super().train_step((x + keras.random.normal(tf.shape(x)), y))

    keras.utils.clear_session()
    x, y = data()
    with strategy.scope():
        model = Noisy([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    losses = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0).history["loss"]
    [seed] = [one for one in strategy.placement.placed if "seed" in one.name]
    return {"losses": losses, "server": seed.server}


# -- what is refused, or goes wrong -----------------------------------------------


def error_of(fit):
    """Return what a `fit` raises, as a program without a handler would print it."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fit()
    notes = getattr(caught.value, "__notes__", [])
    return [caught.type.__name__, str(caught.value), *notes]


def made_outside(strategy):
    del strategy
    x, y = data()
    model = compiled(sequential())
    return {"error": error_of(lambda: model.fit(x, y, verbose=0))}


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


ROWS = {
    # The others go on after an error of a worker.
    "label": a_label_out_of_range,
    "several steps in one go": several_steps_in_one_go,
    "single batches": single_batches,
    "callbacks": callbacks,
    "saved and loaded": saved_and_loaded,
    "noise": noise_in_a_step,
    "made outside": made_outside,
}


def run_async(names):
    return run_rows(ROWS, names, consistency="async")


def make_late():
    """Create a strategy after TensorFlow has begun, and one without servers."""
    import tensorflow as tf

    from tfdist.strategies import ParameterServerStrategy

    jobs = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}
    # The launcher sets these; this process is to seem started by hand.
    for name in [name for name in os.environ if name.startswith("TFDIST_")]:
        del os.environ[name]
    errors = []
    for missing in ("ps", None):
        rest = {job: jobs[job] for job in jobs if job != missing}
        task = {"type": "chief", "index": 0}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": rest, "task": task})
        errors.append(error_of(ParameterServerStrategy))
        tf.zeros([])
    return errors


@pytest.fixture(scope="module")
def rows(asked):
    return run(run_async, [name for name in ROWS if name in asked])


def is_count(share):
    """Say whether a share of the examples is that of a whole number of them."""
    return share * EXAMPLES == pytest.approx(round(share * EXAMPLES), abs=1e-2)


@pytest.mark.parametrize("row", ["several steps in one go"])
def test_steps_in_one_go_are_counted_one_by_one(rows, row):
    found = succeeded(rows, row)

    assert found["iterations"] == 2 * STEPS
    assert all(map(is_count, found["accuracies"]))


@pytest.mark.slow
@pytest.mark.parametrize("row", ["single batches"])
def test_single_batches(rows, row):
    found = succeeded(rows, row)
    _, y = data()
    first = found["first"]
    losses = -np.where(y == 1, np.log(first), np.log1p(-first))

    assert found["iterations"] == 3
    assert found["train"][0]["loss"] == pytest.approx(losses.mean(), abs=1e-6)
    assert found["test"]["loss"] < found["train"][0]["loss"]
    np.testing.assert_allclose(found["predict"], found["call"], rtol=1e-12)


@pytest.mark.parametrize("row", ["callbacks"])
def test_callbacks_see_whole_epochs(rows, row):
    found = succeeded(rows, row)

    assert found["epochs"] == [0, 1, 2]
    assert found["rates"] == pytest.approx([0.01, 0.005, 0.01 / 3])
    assert found["rate"] == pytest.approx(0.01 / 3)
    assert found["checkpoints"] == ["1.keras", "2.keras", "3.keras"]
    assert found["iterations"] == 3 * 7


@pytest.mark.parametrize("row", ["callbacks"])
def test_a_checkpoint_is_loaded_in_plain_keras(rows, row, tmp_path):
    import keras

    found = succeeded(rows, row)
    (tmp_path / "model.keras").write_bytes(found["file"])
    loaded = keras.models.load_model(tmp_path / "model.keras")

    for array, right in zip(loaded.get_weights(), found["weights"], strict=True):
        np.testing.assert_array_equal(array, right)
    assert int(loaded.optimizer.iterations) == found["iterations"]
    x, _ = data()
    np.testing.assert_allclose(loaded.predict(x, verbose=0), found["predict"], 1e-5)


@pytest.mark.parametrize("row", ["saved and loaded"])
def test_what_is_saved_is_loaded(rows, row):
    found = succeeded(rows, row)

    assert found["iterations"] == 2 * 7
    for one, other in (
        (found["optimizer"], found["loaded optimizer"]),
        (found["weights"], found["loaded weights"]),
    ):
        for array, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(array, right)


@pytest.mark.slow
@pytest.mark.parametrize("row", ["noise"])
def test_a_step_may_draw_from_the_generator_of_keras(rows, row):
    found = succeeded(rows, row)

    assert np.isfinite(found["losses"]).all()
    assert found["server"] == 0


@pytest.mark.parametrize("row", ["made outside"])
def test_a_model_made_outside_of_the_scope_is_refused(rows, row):
    kind, text, *_ = succeeded(rows, row)["error"]

    assert kind == "RuntimeError"
    assert "was made outside of strategy.scope()" in text


@pytest.mark.parametrize("row", ["label"])
def test_an_error_of_a_worker_comes_back_with_its_name(rows, row):
    kind, text, note = succeeded(rows, row)["error"]

    assert kind == "InvalidArgumentError"
    assert "label" in text
    assert note.startswith("tfdist: this happened on worker ")


def test_a_cluster_without_servers_and_a_late_strategy_are_refused():
    without, late = run(make_late, workers=None)

    assert without[0] == "ValueError"
    assert "without ps" in without[1]
    assert late[0] == "RuntimeError"
