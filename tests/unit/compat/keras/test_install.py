"""Plain Keras does the same before and after the patches are put on."""

import json
import subprocess
import sys
import textwrap

PROGRAM = """
    import json

    import keras
    import numpy as np

    from tfdist.compat.keras import install


    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return x[5 * index : 5 * index + 5], y[5 * index : 5 * index + 5]


    random = np.random.default_rng(3)
    x = random.normal(size=(20, 4)).astype("float32")
    y = x[:, :1] - x[:, 1:2]


    def results():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([
            keras.Input((4,)),
            keras.layers.Dense(8, "tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3, seed=2),
            keras.layers.Dense(1),
        ])
        inner = keras.optimizers.Adam(
            0.01, global_clipnorm=0.5, gradient_accumulation_steps=2, use_ema=True
        )
        scaled = keras.optimizers.LossScaleOptimizer(inner)
        model.compile(scaled, "mse", metrics=["mae"])
        history = model.fit(
            x, y, batch_size=6, epochs=2, validation_split=0.2, verbose=0
        ).history
        history |= {"py": model.fit(Batches(), verbose=0).history}
        return [
            history,
            [weight.tolist() for weight in model.get_weights()],
            [float(v) for v in model.train_on_batch(x, y)],
            [float(v) for v in model.test_on_batch(x, y)],
            model.evaluate(x, y, verbose=0),
            model.predict(x, verbose=0).tolist(),
        ]


    before = results()
    install()
    after = results()
    print(json.dumps([before == after, len(str(before)) > 1000]))
    """


def test_plain_keras_is_not_changed():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True, True]


def test_importing_the_patches_does_not_put_them_on():
    program = """
        from keras.src.optimizers.base_optimizer import BaseOptimizer
        from keras.src.saving import saving_lib

        from tfdist.compat.keras import install

        found = (BaseOptimizer._clip_gradients, saving_lib.save_model)
        modules = {function.__module__.split(".")[0] for function in found}
        install()
        found = (BaseOptimizer._clip_gradients, saving_lib.save_model)
        print(modules, {function.__module__.split(".")[0] for function in found})
        """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.stdout.split("\n")[-2:] == ["{'keras'} {'tfdist'}", ""], done.stderr
