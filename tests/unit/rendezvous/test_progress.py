"""The last saved step outlives the process that has written it."""

import os
import signal
import subprocess
import sys

import pytest

from tfdist.rendezvous.progress import PROGRESS_VARIABLE, Progress, read_saved_step


def test_the_last_step_is_read(tmp_path):
    path = tmp_path / "progress"
    path.touch()
    assert read_saved_step(path) is None
    progress = Progress.from_environment({PROGRESS_VARIABLE: str(path)})

    for step in (0, 2**40, 7):
        progress.saved(step)
        assert read_saved_step(path) == step
    progress.close()


@pytest.mark.parametrize(
    "env", [{}, {PROGRESS_VARIABLE: ""}, {PROGRESS_VARIABLE: "/no/such/file"}]
)
def test_without_a_launcher_there_is_no_progress(env):
    assert Progress.from_environment(env) is None


def test_a_killed_process_leaves_its_last_step(tmp_path):
    path = tmp_path / "progress"
    path.touch()
    code = (
        "import os, signal\n"
        "from tfdist.rendezvous.progress import Progress\n"
        "Progress.from_environment().saved(8)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, PROGRESS_VARIABLE: str(path)},
        timeout=60,
        check=False,
    )

    assert done.returncode == -signal.SIGKILL
    assert read_saved_step(path) == 8
