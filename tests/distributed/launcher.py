"""`tfdist` as a user starts it, and other commands, for tests of all that they do."""

import contextlib
import os
import re
import select
import subprocess
import sys
from pathlib import Path

SECONDS = 600
COMMAND = Path(sys.executable).with_name("tfdist")
MAIN = "from tfdist_cli.main import main; exit(main())"
TFDIST = (sys.executable, "-c", MAIN, "run")


def run(*arguments, command=TFDIST, **options):
    """Run a job to its end."""
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        check=False,
        **({"text": True, "timeout": SECONDS} | options),
    )


def printed_by(*words, timeout=1200, **options):
    """Run a command to its good end; return what it prints."""
    done = subprocess.run(
        [*map(str, words)],
        **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options),
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-5000:]}{(done.stderr or '')[-3000:]}"
    return done.stdout


def accuracy_in(printed):
    """Return the test accuracy that a chief has printed, with its tag or without."""
    pattern = r"^(?:\[0\] )?test accuracy: (0\.\d+|1\.0+)$"
    (accuracy,) = re.findall(pattern, printed, re.MULTILINE)
    return float(accuracy)


@contextlib.contextmanager
def started(*arguments, command=TFDIST, **options):
    """Start a job, and kill it in the end if it is still there."""
    process = subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def assert_end(pids):
    """Wait until all of these processes have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            ended = select.select([descriptor], [], [], SECONDS)[0]
            os.close(descriptor)
            assert ended, f"process {pid} was left behind"
