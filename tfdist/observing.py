"""The seam at which a process follows its training, or takes itself for another rank.

A simulated rank is a process alone that takes itself for one of several, and sends
nothing. Its observer gives the strategy a collective, and the script its numbers.
"""

import atexit
import os
import runpy
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Observer:
    """What follows the training of this process; the defaults change nothing."""

    # XLA compiles a step with all that observes it.
    allows_xla = True

    def connect(self, engine: str) -> Any:
        """Return the collective of a simulated rank, None for that of the engine."""
        return None

    def replicas(self, number: int) -> int:
        """Return the number of replicas that the script sees."""
        return number

    def datasets(
        self, distribute: Callable[[Any], Any], dataset_fn: Callable[[Any], Any]
    ) -> Any:
        """Distribute the datasets of a function."""
        return distribute(dataset_fn)

    @contextmanager
    def step(self, fn: Any, args: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Mark a step of `Strategy.run`, and yield its arguments."""
        yield args

    def see_layer(self, layer: Any) -> None:
        """Record that the call of a layer ends."""

    def see_update(self, optimizer: Any, gradients: Any, variables: list[Any]) -> None:
        """Record the begin of an update."""

    def see_updated(self) -> None:
        """Record the end of an update."""

    def see_return(self) -> None:
        """Record that a `tf.function` returns to its caller."""

    def see_epoch_end(self) -> None:
        """Record the end of an epoch of `fit`."""

    def see_cause(self, cause: Any) -> None:
        """Record what the check of the first step has found."""


class _Process:
    """The observer of this process, whatever the thread."""

    observer = Observer()


def current_observer() -> Observer:
    """Return the observer of this process."""
    return _Process.observer


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Let an observer follow this process in a block."""
    before = _Process.observer
    _Process.observer = observer
    try:
        yield
    finally:
        _Process.observer = before


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
