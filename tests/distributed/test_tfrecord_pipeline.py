"""The example of TFRecord files: on two processes as accurate as the main job."""

import os
import sys
from pathlib import Path

import pytest
from launcher import COMMAND, accuracy_in, printed_by

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "examples" / "tfrecord_pipeline.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return what runs a command to its good end, and returns what it printed."""
    folder = tmp_path_factory.mktemp("data")
    env = {**os.environ, "TFDS_DATA_DIR": str(folder)}

    def run(*command):
        return printed_by(*command, f"--folder={folder}", env=env)

    return run


def test_two_processes_train_on_their_parts(run):
    printed = run(COMMAND, "run", "-np", 2, PROGRAM)

    assert accuracy_in(printed) >= 0.97


def test_the_same_file_runs_alone_on_other_files(run):
    printed = run(sys.executable, PROGRAM, "--shards=3", "--epochs=4")

    assert accuracy_in(printed) >= 0.8
