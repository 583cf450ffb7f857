"""The main job on real input: the digits example, alone and on two processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launcher import COMMAND, accuracy_in, printed_by

from tfdist.verify import Orders, verify

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "examples" / "digits_allreduce.py"
RATE = re.compile(r"examples_per_second: (\d+\.\d+)$", re.MULTILINE)
# Progress bars, and Keras's warnings with their second line.
OF_KERAS = re.compile(r"\] Epoch \d|━|/keras/src/|\]   ")
LAST_LINE = re.compile(
    r"^all (\d+) ranks hold identical weights: sha256 [0-9a-f]{64}$", re.MULTILINE
)


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """An environment in which the data is prepared for the first time."""
    env = {**os.environ, "TFDS_DATA_DIR": str(tmp_path_factory.mktemp("data"))}
    # The tests set it, and then all of TensorFlow's lines are shown.
    env.pop("TF_CPP_MIN_LOG_LEVEL", None)
    return env


def run(*command, env):
    """Run a command to its good end; return what it prints, on either stream."""
    return printed_by(*command, env=env, stderr=subprocess.STDOUT)


def test_two_processes_train_it_together(env, tmp_path):
    printed = run(
        *(COMMAND, "run", "-np", 2, "--output-dir", tmp_path, PROGRAM), env=env
    )
    own = [line for line in printed.splitlines() if not OF_KERAS.search(line)]
    assert len(own) <= 8, own
    chief, other = (
        (tmp_path / f"rank.{rank}.log").read_text().replace("\r", "\n")
        for rank in range(2)
    )

    assert accuracy_in(chief) >= 0.97
    assert LAST_LINE.findall(chief) == ["2"]
    assert len(RATE.findall(chief)) == 24
    # One progress bar: that of the chief.
    assert len(re.findall(r"^Epoch \d+/24$", chief, re.MULTILINE)) == 24
    assert not re.search(r"Epoch|accuracy|examples_per_second|identical", other)


def test_the_same_file_runs_alone(env):
    printed = run(sys.executable, PROGRAM, env=env)

    assert accuracy_in(printed) >= 0.97
    assert LAST_LINE.findall(printed) == ["1"]
    assert len(RATE.findall(printed)) == 24


def test_its_steps_are_those_of_one_process():
    orders = Orders((str(PROGRAM),), steps=5, float64=True)

    verdict = verify(orders, timeout_seconds=1200)

    assert verdict.passed, verdict
    assert verdict.rows == 64
    assert max(group.largest for group in verdict.groups) < 1e-9
