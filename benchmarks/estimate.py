"""Step time and memory as `tfdist estimate` predicts them, and as they are.

`--what memory` measures five models on 1, 2 and 4 ranks of this machine. `--what time`
measures one on 2 and 4 ranks on two hosts (network namespaces with `tc tbf`, as root),
by engine.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import keras
from script import run_script
from slow_network import limit, meet_by_horovod, run_on_both, two_hosts
from timers import StepTimer

from tfdist.estimate import Link, Scenario, measure, predict
from tfdist.estimate.meter import peak_bytes
from tfdist_cli.table import format_table

_STEPS = 30
_WARM_UP_STEPS = 5
_SECONDS = 300
_MODELS = ("dense", "convolution", "lstm", "embedding", "transformer")
_RATES = {"1gbit": 8e-9, "100mbit": 8e-8}
_LATENCY_SECONDS = 30e-6
_WORDS = 20_000


class _Turn:
    """A turn that is always there."""

    def take(self):
        """Begin."""

    def pass_on(self):
        """End."""


class _Timer(StepTimer, keras.callbacks.Callback):
    """`StepTimer` as a callback of Keras 3."""


def train(name, rows, engine, folder, is_on_network):
    """Train a model; with a folder, write the steps and the peak of this rank."""
    import tfdist

    if is_on_network and engine == "horovod":
        meet_by_horovod()
    strategy = tfdist.strategies.AllReduceStrategy(engine)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, shape = build(name)
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    batch = rows * tfdist.size()
    x, y = make_data(name, shape, batch * _STEPS)
    timer = _Timer(_Turn(), _STEPS)
    model.fit(x, y, batch, epochs=1, verbose=0, callbacks=[timer])
    if folder:
        seconds = statistics.median(timer.blocks[0][_WARM_UP_STEPS:])
        report = {"seconds": seconds, "peak": peak_bytes(is_of_gpu=False)}
        Path(folder, f"{tfdist.rank()}.json").write_text(json.dumps(report))


def build(name):
    """Return a model, and the shape of its examples."""
    layers = keras.layers
    shape = {"dense": (784,), "convolution": (28, 28, 1), "lstm": (50, 32)}
    shape = shape.get(name, (64,))
    x = inputs = keras.Input(shape)
    if name == "dense":
        for _ in range(3):
            x = layers.Dense(1024, "relu")(x)
    elif name == "convolution":
        for filters in (32, 64):
            x = layers.Conv2D(filters, 3, activation="relu")(x)
        x = layers.Dense(128, "relu")(layers.Flatten()(layers.MaxPooling2D()(x)))
    elif name == "lstm":
        x = layers.LSTM(256)(x)
    elif name == "embedding":
        x = layers.Embedding(_WORDS, 128)(x)
        x = layers.Dense(64, "relu")(layers.GlobalAveragePooling1D()(x))
    else:
        x = layers.Embedding(_WORDS, 256)(x)
        for _ in range(2):
            y = layers.LayerNormalization()(x)
            x = x + layers.MultiHeadAttention(4, 64)(y, y)
            y = layers.LayerNormalization()(x)
            x = x + layers.Dense(256)(layers.Dense(1024, "relu")(y))
        x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(10, "softmax")(x)), shape


def make_data(name, shape, rows):
    """Return random examples and labels."""
    import numpy as np

    random = np.random.default_rng(0)
    labels = random.integers(10, size=rows)
    if name in ("embedding", "transformer"):
        return random.integers(_WORDS, size=(rows, *shape), dtype=np.int32), labels
    return random.random((rows, *shape), np.float32), labels


def job(args, name, engine, size, hosts=None):
    """Train on so many ranks; return the seconds of a step and the largest peak."""
    with tempfile.TemporaryDirectory() as folder:
        orders = json.dumps([name, args.rows, engine, folder, hosts is not None])
        if hosts is not None:
            run_on_both(hosts, engine, [__file__, orders], per_host=size // 2)
        else:
            words = [f"{sys.prefix}/bin/tfdist", "run", "-np", str(size)]
            words += ["--collective", engine, __file__, orders]
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=_SECONDS
            )
            if done.returncode:
                raise RuntimeError(f"{name}, {engine}, {size}: {done.stderr[-2000:]}")
        reports = [json.loads(file.read_text()) for file in Path(folder).iterdir()]
    assert len(reports) == size
    seconds = max(report["seconds"] for report in reports)
    return seconds, max(report["peak"] for report in reports)


def estimated(args, name, engine, size):
    """Measure a model as `tfdist estimate` does, with at most two ranks of a host."""
    orders = json.dumps([name, args.rows, "auto", "", False])
    network = Link(_LATENCY_SECONDS, _RATES["1gbit"])
    scenario = Scenario(
        (__file__, orders),
        network,
        (1, size),
        engine=engine,
        per_host=max(1, size // 2),
    )
    return measure(scenario)


def measure_all(args):
    """Predict and measure."""
    figures = memory(args) if args.what == "memory" else times(args)
    rows = [
        [
            each["what"],
            each["where"],
            str(each["ranks"]),
            f"{each['predicted']:.0f}",
            f"{each['measured']:.0f}",
            f"{each['predicted'] / each['measured'] - 1:+.0%}",
        ]
        for each in figures
    ]
    unit = "MiB" if args.what == "memory" else "ms"
    header = [args.what, "where", "ranks", f"predicted, {unit}", f"measured, {unit}"]
    return figures, format_table([*header, "error"], rows)


def memory(args):
    """Return predicted and measured peaks of each model."""
    figures = []
    for name in args.models.split(","):
        for engine in args.engines.split(","):
            measured = estimated(args, name, engine, 4)
            for size in (1, 2, 4):
                _, peak = job(args, name, engine, size)
                predicted = predict(measured, size).peak_bytes
                mib = {"predicted": predicted / 2**20, "measured": peak / 2**20}
                figures.append({"what": name, "where": engine, "ranks": size, **mib})
    return figures


def times(args):
    """Return predicted and measured steps by engine and network."""
    figures = []
    with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder)) as hosts:
        for name in args.models.split(","):
            for engine in args.engines.split(","):
                figures += times_of(args, name, engine, hosts)
    return figures


def times_of(args, name, engine, hosts):
    """Return predicted and measured steps of a model over an engine."""
    figures = []
    for size in (2, 4):
        here = estimated(args, name, engine, size)
        for rate, seconds_per_byte in _RATES.items():
            measured = replace(here, network=Link(_LATENCY_SECONDS, seconds_per_byte))
            limit(hosts, rate)
            seconds, _ = job(args, name, engine, size, hosts)
            predicted = predict(measured, size).seconds
            ms = {"predicted": 1e3 * predicted, "measured": 1e3 * seconds}
            what = f"{name}, {engine}"
            figures.append({"what": what, "where": rate, "ranks": size, **ms})
    return figures


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        train(*json.loads(sys.argv[1]))
    else:
        run_script(
            __doc__,
            [
                ("--what", ("memory", "time"), "what to compare"),
                ("--models", ",".join(_MODELS), "models"),
                ("--engines", "tensorflow", "what joins the ranks"),
                ("--rows", 64, "rows of a rank"),
            ],
            measure_all,
        )
