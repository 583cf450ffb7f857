"""`tfdist report DIR` and `tfdist blackbox --trace` of a real job with a fault."""

import json
import re
from statistics import median

import pytest
from launcher import COMMAND, printed_by

from tfdist.recorder.job import read_job
from tfdist.recorder.ring import RING_BYTES, ROW, STATE

pytestmark = [pytest.mark.slow, pytest.mark.new_processes]


# More than a step takes on a machine that other work slows down.
# Much more than a step takes on a busy machine.
SLEEP_SECONDS, STEPS = 0.5, 8
TRAIN = f"""
import os, signal, sys, time
import keras, numpy as np, tfdist

strategy = tfdist.strategies.AllReduceStrategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

class Fault(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if tfdist.rank() == 1:
            time.sleep({SLEEP_SECONDS})

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2 and tfdist.rank() == 1 and os.environ["TFDIST_RESTARTS"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)

x = np.random.default_rng(1).normal(size=({10 * STEPS}, 4)).astype("float32")
backup = tfdist.callbacks.BackupAndRestore(sys.argv[1])
callbacks = [tfdist.callbacks.Throughput(), Fault(), backup]
model.fit(x, x[:, :1], batch_size=10, epochs=4, verbose=0, callbacks=callbacks)
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Run a job in which rank 1 sleeps in each step, and dies once."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(TRAIN)
    printed_by(
        *(COMMAND, "run", "-np", "2", "--max-restarts", "1", "--output-dir"),
        *(folder / "logs", folder / "train.py", folder / "backup"),
    )
    return folder / "logs"


def test_the_report(logs):
    html = logs.parent / "job.html"

    text = " ".join(printed_by(COMMAND, "report", logs, "--html", html).split())

    assert "rank 1 was killed by SIGKILL" in text
    assert text.endswith("UTC: all ended well. The last saved step was 32.")
    assert html.read_text().count("<svg") == 5
    first, second = read_job(logs).starts
    assert [epoch.number for epoch in first.epochs][:2] == [1, 2]
    assert [epoch.number for epoch in second.epochs] == [3, 4]
    for epoch in second.epochs:
        assert epoch.logs["loss"] > 0
        assert epoch.logs["examples_per_second"] > 0
        # Rank 0 waits while rank 1 sleeps.
        assert epoch.by_rank[0].collectives > SLEEP_SECONDS / 2
        assert epoch.by_rank[1].compute > SLEEP_SECONDS


@pytest.mark.parametrize("ahead", [0.0, 1000.0])
def test_the_trace(logs, ahead, tmp_path):
    """The records of both ranks, and again as if another host's clock were ahead."""
    for rank in range(2):
        ring = bytearray((logs / "restart1" / f"rank.{rank}.flight").read_bytes())
        if rank == 1:
            set_ahead(ring, ahead)
        (tmp_path / f"rank.{rank}.flight").write_bytes(ring)

    printed_by(COMMAND, "blackbox", tmp_path, "--trace", tmp_path / "job.json")

    events = json.loads((tmp_path / "job.json").read_text())["traceEvents"]
    lengths = {}
    for event in events:
        if event["ph"] == "X":
            kind = event["pid"], re.sub("^late for .*", "late", event["name"])
            lengths.setdefault(kind, []).append(event["dur"] / 1e6)
    least = SLEEP_SECONDS / 3
    waits = [length for length in lengths[0, "waits for rank 1"] if length > least]
    # Two epochs, in each of whose steps rank 1 sleeps.
    assert len(waits) >= 2 * STEPS - 2
    assert median(waits) == pytest.approx(SLEEP_SECONDS, rel=0.5)
    assert len(lengths[1, "late"]) >= len(waits)
    # Rank 1 may wait long for rank 0 when training starts, and not in most steps.
    others = lengths.get((1, "waits for rank 0"), [])
    assert sum(length > SLEEP_SECONDS * 2 / 3 for length in others) < len(waits) / 2


def set_ahead(ring, seconds):
    """Put the times of a real record ahead."""
    for at in range(0, STATE * ROW.size, ROW.size):
        number, *others, begin, agreed, end = ROW.unpack_from(ring, at)
        times = [time + seconds if time else 0.0 for time in (begin, agreed, end)]
        ROW.pack_into(ring, at, number, *others, *times)
    assert len(ring) > RING_BYTES
