"""A program with a tracker makes one run, whatever the number of ranks."""

import json
import os
import sqlite3

import pytest
from launcher import TFDIST, printed_by
from page_blocks import blocks_of

pytestmark = [pytest.mark.new_processes, pytest.mark.slow]

FIT = """
import json

import keras
import numpy as np

import tfdist

{before}
strategy = tfdist.strategies.AllReduceStrategy()
{between}
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.arange(20.0).reshape(10, 2) / 10
y = x[:, :1]
{fit}
history = model.history
if tfdist.is_chief():
    print(json.dumps(history.history["loss"]))
{after}
"""


def losses_of_job(folder, *options, **parts):
    """Run a program on two ranks in a folder; return the losses of its epochs."""
    script = folder / "train.py"
    empty = dict.fromkeys(("before", "between", "after"), "")
    empty["fit"] = "model.fit(x, y, batch_size=4, epochs=2, verbose=0)"
    script.write_text(FIT.format(**empty | parts))
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    out = printed_by(*TFDIST, "-np", "2", *options, script, cwd=folder, env=env)
    (line,) = [line for line in out.splitlines() if line.startswith("[0] [")]
    return json.loads(line.removeprefix("[0] "))


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("before", ()),
        # As with a launcher that knows nothing of W&B.
        ("between", ("--env", "WANDB_MODE=offline")),
    ],
)
def test_wandb_has_one_run_of_the_whole_job(place, options, tmp_path):
    pytest.importorskip("wandb", reason="wandb, of tfdist[others], is not installed")
    [page] = [b.text for b in blocks_of("docs/with_others.md") if "wandb" in b.text]
    start, fit = page.split("model.fit")
    # The chief's logs are in a file that only W&B reads, and in the summary.
    after = (
        "mine = wandb.run.summary['epoch/loss'] if tfdist.is_chief() else None\n"
        "assert mine in (None, history.history['loss'][-1])\n"
    )

    parts = {place: start, "fit": f"model.fit{fit}"}
    losses_of_job(tmp_path, *options, after=after, **parts)

    assert len([*tmp_path.glob("wandb/offline-run-*")]) == 1


@pytest.mark.parametrize("flavor", ["tensorflow", "keras"])
def test_mlflow_has_one_run_of_the_whole_job(flavor, tmp_path):
    reason = "mlflow, of tfdist[others], is not installed"
    pytest.importorskip("mlflow", reason=reason)
    uri = f"sqlite:///{tmp_path}/runs.db"
    before = (
        "import mlflow\n"
        f"mlflow.set_tracking_uri({uri!r})\n"
        f"mlflow.{flavor}.autolog(log_models={flavor == 'tensorflow'})\n"
    )

    losses = losses_of_job(tmp_path, before=before)

    with sqlite3.connect(tmp_path / "runs.db") as store:
        runs = store.execute("select status from runs").fetchall()
        logged = store.execute(
            "select value from metrics where key = 'loss' order by step"
        ).fetchall()
    assert runs == [("FINISHED",)]
    assert [loss for (loss,) in logged] == pytest.approx(losses, rel=1e-6)
    # To know the signature of the model it predicts, which needs all ranks.
    models = [*tmp_path.glob("mlruns/**/MLmodel")]
    signed = ["signature:" in model.read_text() for model in models]
    assert signed == [True] * (flavor == "tensorflow")
