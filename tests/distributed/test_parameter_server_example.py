"""The digits example with parameter servers: as accurate as the main job."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "examples" / "digits_parameter_server.py"
COMMAND = Path(sys.executable).with_name("tfdist")

EPOCHS = 18


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """An environment in which the data is prepared for the first time."""
    return {**os.environ, "TFDS_DATA_DIR": str(tmp_path_factory.mktemp("data"))}


@pytest.mark.parametrize(
    ("ps", "options", "batches", "most"),
    [
        # Of the 1,437 examples, 32 in a batch.
        (1, ["--consistency=async"], 45, None),
        (2, ["--consistency=bounded", "--max_staleness=1"], 45, 1),
        # Two workers share a batch of 64.
        (1, ["--consistency=sync"], 23, 0),
    ],
    ids=["async", "bounded", "sync"],
)
def test_two_workers_learn_the_digits(env, tmp_path, ps, options, batches, most):
    done = subprocess.run(
        [COMMAND, "run", "--workers", "2", "--ps", str(ps), "--output-dir", tmp_path]
        + [PROGRAM, f"--epochs={EPOCHS}", *options],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    printed = (tmp_path / "chief.log").read_text().replace("\r", "\n")

    assert float(only(r"^test accuracy: ([\d.]+)$", printed)) >= 0.97
    assert int(only(r"^steps: (\d+)$", printed)) == batches * EPOCHS
    staleness = re.findall(r"^updates that missed (\d+) others: (\d+)$", printed, re.M)
    assert sum(int(updates) for _, updates in staleness) == batches * EPOCHS
    assert most is None or max(int(missed) for missed, _ in staleness) <= most
    assert re.findall(r"^ps (\d): [\d,]+ bytes", printed, re.M) == ["0", "1"][:ps]
    others = [log for log in tmp_path.iterdir() if log.name != "chief.log"]
    assert len(others) == 2 + ps
    assert not any("accuracy" in log.read_text() for log in others)


def only(pattern, printed):
    """Return what a pattern finds once."""
    (found,) = re.findall(pattern, printed, re.MULTILINE)
    return found
