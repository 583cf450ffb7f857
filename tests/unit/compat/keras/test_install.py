"""Plain Keras does the same before and after the patches are put on."""

import json
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import json

    import keras
    import numpy as np
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.saving import saving_lib

    from tfdist.compat.keras import install


    def patched():
        found = (BaseOptimizer._clip_gradients, saving_lib.save_model)
        return sorted({function.__module__.split(".")[0] for function in found})


    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return x[5 * index : 5 * index + 5], y[5 * index : 5 * index + 5]


    random = np.random.default_rng(3)
    x = random.normal(size=(20, 4)).astype("float32")
    y = x[:, :1] - x[:, 1:2]


    def fit(model, *args, **options):
        history = model.fit(*args, verbose=0, **options).history
        history.pop("loss_scale", None)  # This is meant to be new.
        return history


    def results():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([
            keras.Input((4,)),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3, seed=2),
            keras.layers.Dense(1),
        ])
        inner = keras.optimizers.Adam(
            0.01, global_clipnorm=0.5, gradient_accumulation_steps=2, use_ema=True
        )
        scaled = keras.optimizers.LossScaleOptimizer(inner)
        model.compile(scaled, "mse", metrics=["mae"])
        history = fit(model, x, y, batch_size=6, epochs=2, validation_split=0.2)
        history |= {"py": fit(model, Batches())}
        return [
            history,
            [weight.tolist() for weight in model.get_weights()],
            [float(v) for v in model.train_on_batch(x, y)],
            [float(v) for v in model.test_on_batch(x, y)],
            model.evaluate(x, y, verbose=0),
            model.predict(x, verbose=0).tolist(),
        ]


    before, patched_before = results(), patched()
    install(is_alone=True)
    after, patched_after = results(), patched()
    found = {
        "is equal": before == after,
        "is much": len(str(before)) > 1000,
        "patched before": patched_before,
        "patched after": patched_after,
    }
    print(json.dumps(found))
    """


@pytest.fixture(scope="module")
def found():
    """Return what a process has found whose Keras nobody else has patched."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_plain_keras_is_not_changed(found):
    assert found["is equal"]
    assert found["is much"]


def test_importing_the_patches_does_not_put_them_on(found):
    assert found["patched before"] == ["keras"]
    assert found["patched after"] == ["tfdist"]
