"""`tfdist estimate` on small scripts: what it counts, but no times."""

import json

import pytest
from launcher import COMMAND, printed_by

from tfdist.benchmarks import BenchmarkError
from tfdist.estimate import Link, Scenario, measure, predict

pytestmark = pytest.mark.slow

SCRIPT = """
import sys

import keras
import numpy as np

import tfdist

how = sys.argv[1]
strategy = tfdist.strategies.AllReduceStrategy(shard_optimizer=how == "shared")
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(500, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(1000, use_bias=False),
            keras.layers.Dense(10, use_bias=False),
        ]
    )
    micro_steps = 2 if how == "shared" else None
    adam = keras.optimizers.Adam(gradient_accumulation_steps=micro_steps)
    model.compile(adam, "mse")
rows = 8 if how == "shared" else 4 * tfdist.size()
x = np.zeros((rows * 40, 3), np.int32)
model.fit(x, np.zeros((len(x), 10)), batch_size=rows, verbose=0, shuffle=False)
"""
# Four bytes for each weight of both dense layers.
DENSE = 4 * (12 * 1000 + 1000 * 10)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_what_a_rank_sends_and_keeps(script, tmp_path):
    """A batch on each rank: dense gradients are summed, rows of the table gathered."""
    file = tmp_path / "figures.json"
    words = ["-np", "1,2", "--steps", "4", "--json", file, script, "own"]
    printed_by(COMMAND, "estimate", *words)
    figures = json.loads(file.read_text())
    assert not figures["is_strong_scaling"]
    assert len(figures["alone"]["step_seconds"]) == 4
    alone, two = figures["predictions"]
    assert (alone["rows"], two["rows"]) == (4, 4)
    assert alone["sent_bytes"] == 0
    # Of 12 words a rank sends four numbers and an index each, next to the sums of the
    # dense gradients and of the metrics.
    assert DENSE + 12 * (4 * 4 + 4) <= two["sent_bytes"] < DENSE + 1000
    assert figures["largest"]["gradient_bytes"] == DENSE
    for each in (alone, two):
        assert 2e8 < each["peak_bytes"] < 4e9
    calibration = figures["calibration"]
    assert min(calibration["small_seconds"], calibration["seconds"]) > 0


def test_a_shared_batch_of_a_cluster(script):
    """What the script has already is seen: shards, and two batches for each update."""
    command = (str(script), "shared")
    measured = measure(Scenario(command, Link(1e-3, 1e-9), (4,), steps=4))
    assert measured.is_strong
    assert (measured.alone.rows, measured.largest.rows) == (8, 2)
    assert measured.alone.micro_steps == 2
    sent = [
        (message.kind, message.is_gradient) for message in measured.largest.messages
    ]
    assert {("reduce", True), ("share", False)} <= {*sent}
    assert predict(measured, 4).seconds > 1e-3


def test_a_script_that_names_another_library(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import tfdist; tfdist.strategies.AllReduceStrategy('mpi')")
    message = r"train.py as one of 1 .*'mpi' in .* --collective tensorflow\. "
    with pytest.raises(BenchmarkError, match=f"(?s){message}") as failed:
        measure(Scenario((str(script),), Link(1e-3, 1e-9)))
    assert failed.value.exit_code == 1
