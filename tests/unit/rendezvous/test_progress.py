"""The last saved step outlives the process that has written it."""

import os
import signal
import subprocess
import sys

import pytest

from tfdist.rendezvous.progress import PROGRESS_VARIABLE, Progress, read_saved_step


@pytest.mark.parametrize(
    "env", [{}, {PROGRESS_VARIABLE: ""}, {PROGRESS_VARIABLE: "/no/such/file"}]
)
def test_without_a_launcher_there_is_no_progress(env):
    assert Progress.from_environment(env) is None


def test_a_killed_process_leaves_its_last_step(tmp_path):
    path = tmp_path / "progress"
    path.touch()
    assert read_saved_step(path) is None
    code = (
        "import os, signal\n"
        "from tfdist.rendezvous.progress import Progress\n"
        "progress = Progress.from_environment()\n"
        "progress.saved(2**40), progress.saved(8)\n"
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
