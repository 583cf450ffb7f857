"""The large-batch example in one process, with a small model: what it sets and says.

That it trains on two processes is in tests/distributed/test_large_batch.py.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[3] / "examples" / "large_batch.py"
EPOCHS = 12
SEEDS = 2

# 32 random images for one layer, and a line about each `fit`.
TRAIN_A_SMALL_MODEL = """
import json, sys
sys.path.insert(0, sys.argv.pop(1))
import keras, numpy as np, tensorflow as tf
import large_batch

images = np.random.default_rng(1).integers(0, 256, (32, 8, 8, 1), dtype="uint8")
dataset = tf.data.Dataset.from_tensor_slices((images, images[:, 0, 0, 0] % 10))
fit = keras.Model.fit

def report(model, *arguments, **options):
    start = float(np.abs(model.get_weights()[0]).sum())
    history = fit(model, *arguments, **options)
    told = {
        "optimizer": type(model.optimizer).__name__,
        "batch": options["batch_size"],
        "start": start,
        "rates": history.history["learning_rate"],
    }
    print("fit:", json.dumps(told))
    return history

keras.Model.fit = report
large_batch.load = lambda name: ((dataset, dataset), None)
large_batch.build_model = lambda shape: keras.Sequential(
    [keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(10, "softmax")]
)
large_batch.app.run(large_batch.main)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where it has run."""
    folder = tmp_path_factory.mktemp("large_batch")
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_A_SMALL_MODEL, PROGRAM.parent]
        + [f"--epochs={EPOCHS}", f"--seeds={SEEDS}", "--times=2", "--batch_size=8"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder / "printed").write_text(done.stdout)
    return folder


@pytest.fixture
def fits(folder):
    """What was told of each training, in the order in which they ran."""
    lines = (folder / "printed").read_text().splitlines()
    return [json.loads(line[5:]) for line in lines if line.startswith("fit: ")]


def test_the_table_has_a_row_for_each_recipe(folder):
    printed = (folder / "printed").read_text().splitlines()
    header, ruler, *rows = [line for line in printed if line.startswith("|")]

    assert header == (
        "| recipe               | global batch | steps | test accuracy | spread |"
    )
    assert re.fullmatch(r"\| :-+ \|( -+: \|){4}", ruler)
    assert {len(line) for line in (header, ruler, *rows)} == {len(header)}
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    # 32 images are 4 batches of 8, and 2 of 16, in each of 12 epochs.
    assert [row[:3] for row in cells] == [
        ["small batch", "8", "48"],
        ["naive", "16", "24"],
        ["linear scaling", "16", "24"],
        ["scaling with warm-up", "16", "24"],
        ["LARS with warm-up", "16", "24"],
        ["LAMB with warm-up", "16", "24"],
    ]
    for *_, accuracy, spread in cells:
        assert re.fullmatch(r"[01]\.\d{4}", accuracy)
        assert re.fullmatch(r"0\.\d{4}", spread)


def test_every_recipe_has_its_optimizer_batch_and_start(fits):
    optimizers = [fit["optimizer"] for fit in fits]
    starts = [fit["start"] for fit in fits]

    assert optimizers == ["SGD"] * 4 * SEEDS + ["Lars"] * SEEDS + ["Lamb"] * SEEDS
    assert [fit["batch"] for fit in fits] == [8] * SEEDS + [16] * 5 * SEEDS
    assert starts == starts[:SEEDS] * 6
    assert len(set(starts)) == SEEDS


def test_the_rates_are_scaled_warmed_up_and_fall(fits):
    small, naive, linear, warm, lars, lamb = (fit["rates"] for fit in fits[::SEEDS])

    def rates(rate, steps, first=None, second=None):
        # That of an epoch's last step, where all but one of its steps are done.
        falling = [(6 - epoch - 1 + 1 / steps) / 6 for epoch in range(6)]
        whole = [first or rate, second or rate, *[rate] * 4]
        return pytest.approx([*whole, *(rate * part for part in falling)])

    assert small == rates(0.02, steps=4)
    assert naive == rates(0.02, steps=2)
    assert linear == rates(0.04, steps=2)
    # Two of the twelve epochs, of which the first goes half of the way.
    assert warm == rates(0.04, steps=2, first=0.03)
    assert lars == rates(0.0125, steps=2, first=0.009375)
    root = 2**0.5
    assert lamb == rates(0.006 * root, steps=2, first=0.003 * (1 + root))
