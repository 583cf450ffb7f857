"""What runs in each process of a verification: the script, watched.

It is started as `python -m tfdist.verify.child FOLDER [--lone]`; the folder holds the
orders, and gets what was seen.
"""

import atexit
import os
import runpy
import sys
import threading
from pathlib import Path

import keras

from tfdist.cluster import detect
from tfdist.compat.keras import install
from tfdist.verify.forward import ForwardPass
from tfdist.verify.lone import stand_for
from tfdist.verify.orders import (
    EXIT_CODE_OF_PLAIN_TRAINING,
    LONE_OPTION,
    ORDERS_FILE,
    Orders,
)
from tfdist.verify.randomness import switch_off
from tfdist.verify.recorder import Recorder
from tfdist.verify.stopping import NotDistributedError, StopTraining
from tfdist.verify.variables import Names
from tfdist.verify.watch import Watch


def main(folder: Path, *, lone: bool) -> int:
    """Run the script until it has taken its steps, and leave what was seen.

    Args:
        folder: Where the orders are.
        lone: Whether this process stands for all.

    Returns:
        The exit code.
    """
    orders = Orders.read(folder / ORDERS_FILE)
    recorder = _prepare(orders, lone=lone)
    try:
        _run(orders)
    except StopTraining:
        pass
    except NotDistributedError as error:
        print(f"tfdist verify: {error}", file=sys.stderr)
        return EXIT_CODE_OF_PLAIN_TRAINING
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    recorder.recording.write(folder)
    _leave_if_threads_would_stay()
    return 0


def _prepare(orders: Orders, *, lone: bool) -> Recorder:
    """Seed this process and put the watch up."""
    # First tfdist's own patches, once and for all, so that ours lie around them.
    install(is_alone=True)
    recorder = Recorder(0 if lone else detect().rank, orders.steps)
    names = Names()
    forward = ForwardPass(names)
    switch_off(recorder.recording)
    forward.install()
    Watch(recorder, forward, names).install()
    if lone:
        stand_for(orders.size)
    keras.utils.set_random_seed(orders.seed)
    if orders.float64:
        keras.config.set_floatx("float64")
    return recorder


def _run(orders: Orders) -> None:
    """Run the script as `python` would."""
    name, *arguments = orders.command
    sys.argv = [name, *arguments]
    if orders.module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(name).resolve().parent)
    runpy.run_path(name, run_name="__main__")


def _leave_if_threads_would_stay() -> None:
    """End a process that was stopped in the middle of work that others do for it."""
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if any(not thread.daemon for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        # The farewell between the ranks is among them.
        atexit._run_exitfuncs()
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), lone=LONE_OPTION in sys.argv[2:]))
