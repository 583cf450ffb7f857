"""Child process of a verification, with the arguments ORDERS FOLDER [--lone]."""

import atexit
import os
import runpy
import sys
import threading
from pathlib import Path

import keras

from tfdist.cluster import detect
from tfdist.compat.keras import install
from tfdist.verify.bits import BitsWatch
from tfdist.verify.lone import stand_for
from tfdist.verify.start import LONE_OPTION, Orders
from tfdist.verify.watch import StopTraining, Watch


def main(orders: Orders, folder: Path, *, lone: bool) -> None:
    """Run the script under a watch, and write the recording."""
    watch = _prepare(orders, lone=lone)
    try:
        _run(orders)
    except StopTraining:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    watch.recording.write(folder)
    _leave_if_threads_would_stay()


def _prepare(orders: Orders, *, lone: bool) -> Watch:
    """Seed this process and install the watch."""
    # tfdist's own patches come first, so that the watch wraps them.
    install(is_alone=True)
    kind = BitsWatch if orders.bits else Watch
    watch = kind(0 if lone else detect().rank, orders.steps)
    watch.install()
    if lone:
        stand_for(orders.size)
    if orders.seed is not None:
        keras.utils.set_random_seed(orders.seed)
    if orders.float64:
        keras.config.set_floatx("float64")
    return watch


def _run(orders: Orders) -> None:
    """Run the script as the `python` command does."""
    name, *arguments = orders.command
    sys.argv = [name, *arguments]
    if orders.module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(name).resolve().parent)
    runpy.run_path(name, run_name="__main__")


def _leave_if_threads_would_stay() -> None:
    """Exit even if threads of the stopped script are still running."""
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if any(not thread.daemon for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        # The exit handlers include the farewell of the ranks.
        atexit._run_exitfuncs()
        os._exit(0)


if __name__ == "__main__":
    given, name, *options = sys.argv[1:]
    main(Orders.read(given), Path(name), lone=LONE_OPTION in options)
