"""Steps that are written down, and outlive the process that has made them."""

import os
import signal
import subprocess
import sys

import pytest

from tfdist.rendezvous.progress import PROGRESS_VARIABLE, Progress, Steps


@pytest.fixture
def progress(tmp_path):
    progress = Progress.create(tmp_path / "progress")
    yield progress
    progress.close()


def test_what_was_written_last_is_read(progress):
    progress.begin(50)
    begun = progress.read()
    for step in range(51, 58):
        progress.made(step)

    assert begun == Steps(50, None)
    assert progress.read() == Steps(50, 57)


@pytest.mark.parametrize("step", [0, 255, 256, 2**40])
def test_any_number_of_steps(progress, step):
    progress.begin(step)
    progress.made(step + 1)

    assert progress.read() == Steps(step, step + 1)


def test_a_second_fit_goes_on_with_the_first_ones_steps(progress):
    progress.begin(10)
    progress.made(20)
    progress.begin(20)
    progress.made(21)

    assert progress.read() == Steps(10, 21)


def test_the_launcher_reads_what_another_process_writes(progress):
    writer = Progress.from_environment({PROGRESS_VARIABLE: str(progress.path)})

    writer.begin(3)
    writer.made(4)
    writer.close()

    assert progress.read() == Steps(3, 4)


@pytest.mark.parametrize(
    "env", [{}, {PROGRESS_VARIABLE: ""}, {PROGRESS_VARIABLE: "/no/such/file"}]
)
def test_nobody_wants_to_know(env):
    assert Progress.from_environment(env) is None


def test_each_start_has_a_file_of_its_own(progress):
    with pytest.raises(FileExistsError):
        Progress.create(progress.path)


def test_a_killed_process_leaves_its_last_step(progress):
    code = (
        "import os, signal\n"
        "from tfdist.rendezvous.progress import Progress\n"
        "progress = Progress.from_environment()\n"
        "progress.begin(7)\n"
        "progress.made(8)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, PROGRESS_VARIABLE: str(progress.path)},
        timeout=60,
        check=False,
    )

    assert done.returncode == -signal.SIGKILL
    assert progress.read() == Steps(7, 8)
