"""`tfdist run` as a user starts it, for the tests of the launcher."""

import contextlib
import os
import select
import subprocess
import sys

SECONDS = 60
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
