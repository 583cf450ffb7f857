"""Running a script in this process, until it ends or has trained enough."""

import atexit
import os
import runpy
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tfdist.observing.observer import Observer, observed_by


class StopTraining(BaseException):
    """End of the script, after enough steps or because it trains without tfdist."""

    # Not an `Exception`, which the script may catch.


def run_observed(observer: Observer, command: Sequence[str], *, module: bool) -> None:
    """Run a script and its arguments as the `python` command does, observed."""
    try:
        with observed_by(observer):
            run_script(command, module=module)
    except StopTraining:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def run_script(command: Sequence[str], *, module: bool) -> None:
    """Run a module or a file and its arguments as the main program."""
    name, *arguments = command
    sys.argv = [name, *arguments]
    if module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(name).resolve().parent)
    runpy.run_path(name, run_name="__main__")


def leave_if_threads_would_stay() -> None:
    """Exit even if threads of the stopped script are still running."""
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if any(not thread.daemon for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        # The exit handlers include the farewell of the ranks.
        atexit._run_exitfuncs()
        os._exit(0)
