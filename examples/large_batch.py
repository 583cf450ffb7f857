"""Train with batches eight and sixteen times as large, in five ways, side by side.

    python examples/large_batch.py --plot=curves.png
    tfdist run -np 2 examples/large_batch.py

In as many epochs a large batch makes few steps, so each must go farther. A table says
how well each recipe for that makes up for it, over several seeds; `--plot` draws how it
gets there. The global batch is what counts, on however many processes it is computed.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from absl import app, flags, logging
from digits import DATASET, EPOCHS, STRATEGY, build_model, load, scale

import tfdist
from tfdist.callbacks import (
    LearningRateScale,
    LearningRateSchedule,
    LearningRateWarmup,
)

# Here the batch is that of all processes, and there are more epochs.
del flags.FLAGS.batch_size
flags.set_default(EPOCHS, 30)
BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "examples of the small batch")
TIMES = flags.DEFINE_multi_integer(
    "times", [8, 16], "how many times larger the large batches are", lower_bound=1
)
SEEDS = flags.DEFINE_integer("seeds", 5, "how often each is trained", lower_bound=1)
PLOT = flags.DEFINE_string("plot", None, "draw the curves into this file")


def sgd():
    return keras.optimizers.SGD(0.02, momentum=0.9)


def lars():
    # Biases have this rate as it is, so the coefficient is what is large.
    return tfdist.optimizers.Lars(0.00625, trust_coefficient=0.2)


def lamb():
    return keras.optimizers.Lamb(0.006)


# The optimizer with the rate for the small batch, by what rule that grows with the
# batch, and which part of the epochs warms up.
RECIPES = {
    "naive": (sgd, "none", 0),
    "linear scaling": (sgd, "linear", 0),
    "scaling with warm-up": (sgd, "linear", 1 / 6),
    "LARS with warm-up": (lars, "linear", 1 / 6),
    "LAMB with warm-up": (lamb, "sqrt", 1 / 6),
}


def main(_):
    # Else TensorFlow Datasets tells each step of its work.
    logging.set_verbosity(logging.ERROR)
    strategy = tfdist.strategies.create(STRATEGY.value)
    data = load_arrays(DATASET.value)

    say(f"| {'recipe':20} | global batch | steps | test accuracy | spread |")
    say(f"| :{'-' * 19} | -----------: | ----: | ------------: | -----: |")
    runs = [("small batch", 1, RECIPES["naive"])]
    runs += [(name, times, RECIPES[name]) for times in TIMES.value for name in RECIPES]
    curves = {}
    for name, times, recipe in runs:
        seeds = range(1, SEEDS.value + 1)
        curve = np.array([train(strategy, data, times, recipe, s) for s in seeds])
        last, batch = curve[:, -1], BATCH_SIZE.value * times
        steps = -(-len(data[0][0]) // batch) * EPOCHS.value
        say(
            f"| {name:20} | {batch:12,} | {steps:5,} "
            f"| {last.mean():13.4f} | {last.std():6.4f} |"
        )
        curves[name, times] = curve.mean(axis=0)
    if PLOT.value and tfdist.is_chief():
        draw(curves, PLOT.value)


def load_arrays(name):
    """Return the images and labels to train with, and those to test with."""
    splits, _ = load(name)
    batches = [split.map(scale).batch(len(split)) for split in splits]
    return [next(batch.as_numpy_iterator()) for batch in batches]


def train(strategy, data, times, recipe, seed):
    """Train once, and return the test accuracy after each epoch."""
    (images, labels), test = data
    optimizer, rule, warmup = recipe
    epochs = EPOCHS.value
    keras.utils.clear_session()
    # Each recipe starts with the same weights and sees the same order.
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = build_model(images.shape[1:])
        model.compile(
            optimizer(), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
        )
    history = model.fit(
        images,
        labels,
        batch_size=BATCH_SIZE.value * times,
        epochs=epochs,
        validation_data=test,
        validation_batch_size=512,
        verbose=0,
        callbacks=[
            LearningRateScale(rule, size=times),
            LearningRateWarmup(int(epochs * warmup)),
            # In the second half the rate falls to 0, with the small batch too.
            LearningRateSchedule(
                lambda epoch: (epochs - epoch) / (epochs - epochs // 2),
                start_epoch=epochs // 2,
                staircase=False,
            ),
        ],
    )
    return history.history["val_accuracy"]


def draw(curves, file):
    """Draw the test error after each epoch, a panel for each size of the batch."""
    # Without pyplot, which would look for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(TIMES.value), 4), layout="constrained")
    panels = figure.subplots(1, len(TIMES.value), sharey=True, squeeze=False)[0]
    for axes, times in zip(panels, TIMES.value, strict=True):
        for (name, of_curve), curve in curves.items():
            if of_curve in (1, times):
                style = "k--" if of_curve == 1 else "-"
                axes.plot(range(1, len(curve) + 1), 1 - curve, style, label=name)
        axes.set_title(f"{times} times the batch of {BATCH_SIZE.value}")
        axes.set_xlabel("epoch")
        axes.set_yscale("log")
        axes.grid(visible=True, alpha=0.3)
    panels[0].set_ylabel("test error")
    panels[0].legend()
    figure.savefig(file, dpi=150)


def say(line):
    if tfdist.is_chief():
        print(line, flush=True)


if __name__ == "__main__":
    app.run(main)
