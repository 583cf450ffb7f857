"""The last saved step outlives the process that has written it."""

import math
import os
import signal
import subprocess
import sys

import pytest

from tfdist.cluster.launcher import (
    PROGRESS_VARIABLE,
    Launcher,
    ask_for_stacks,
    ask_for_status,
    read_culprit,
    read_saved_step,
    read_status,
)


def test_a_killed_process_leaves_its_last_step(tmp_path):
    path = tmp_path / "progress"
    path.touch()
    assert read_saved_step(path) is None
    code = (
        "import os, signal\n"
        "from tfdist.cluster.launcher import Launcher\n"
        "Launcher().note_saved(2**40), Launcher().note_saved(8)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, PROGRESS_VARIABLE: str(path)},
        timeout=300,
        check=False,
    )

    assert done.returncode == -signal.SIGKILL
    assert read_saved_step(path) == 8


def test_a_launcher_asks_for_stacks_and_hears_of_a_culprit(tmp_path, monkeypatch):
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "0"))
    launcher = Launcher()
    assert not launcher.asks_for_stacks()
    assert read_culprit(tmp_path / "0") is None

    question = ask_for_stacks(tmp_path / "0")
    launcher.note_culprit(3)

    assert launcher.asks_for_stacks()
    assert not question.exists()
    assert not launcher.asks_for_stacks()
    assert read_culprit(tmp_path / "0") == 3


def test_a_launcher_with_a_terminal_hears_how_far_the_chief_is(tmp_path, monkeypatch):
    progress = tmp_path / "0"
    monkeypatch.setenv(PROGRESS_VARIABLE, str(progress))
    launcher = Launcher()
    launcher.note_slowest(3)  # It has not asked.
    assert not launcher.asks_for_status()
    assert read_status(progress, "step 1") == ""

    question = ask_for_status(progress)
    assert launcher.asks_for_status()
    assert read_status(progress, "step 1") == "step 1"
    launcher.note_status("step \33[2J2\n")
    assert read_status(progress, "step 1") == "step [2J2"
    launcher.note_slowest(3)
    assert read_status(progress, "step 1") == "step [2J2, slowest: rank 3"
    launcher.note_status("")
    assert question.exists()
    assert read_status(progress, "step 1") == ""


@pytest.mark.parametrize("value", ["", "/no/such/folder/0"])
def test_without_a_launcher_nobody_asks_and_nothing_is_noted(value):
    launcher = Launcher({PROGRESS_VARIABLE: value})

    launcher.note_culprit(3)
    launcher.note_saved(7)

    assert not launcher.asks_for_stacks()


def test_a_removed_folder_is_made_again(tmp_path):
    progress = tmp_path / "removed" / "0"

    # The ranks of a job that has run for long have met.
    assert read_saved_step(progress) == 0
    assert ask_for_stacks(progress).exists()


@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        ({}, 600.0),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3600"}, 3600.0),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}, math.inf),
        ({"HOROVOD_STALL_CHECK_DISABLE": "1"}, math.inf),
        ({"HOROVOD_STALL_CHECK_DISABLE": "0"}, 600.0),
    ],
)
def test_horovods_own_variables_say_how_long_ranks_wait(env, seconds):
    assert Launcher(env).stall_timeout(600.0) == seconds
