"""BackupAndRestore: training that resumes exactly where it was interrupted."""

import contextlib
import functools
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np

from tfdist.callbacks.backup import snapshots
from tfdist.callbacks.backup.files import StateFiles, StateWriter
from tfdist.callbacks.backup.state import random_states, set_random_states
from tfdist.callbacks.ranks import collective_of, servers_of
from tfdist.cluster.launcher import Launcher
from tfdist.collectives.base import Collective
from tfdist.compat.keras.install import install
from tfdist.compat.keras.positions import Position, Resumes, begin_at_epoch

# Slurm sends SIGUSR1 before the time limit, with --signal=USR1@120.
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
# A shell's exit code of SIGTERM, whichever signal it was: start the program again.
_STOPPED_EXIT_CODE = 128 + signal.SIGTERM
# The signals that are received instead of ending the process.
_held: set[signal.Signals] = set()
# Those that came too late for any step of a `fit`. The next one stops in its first.
_late: list[str] = []


class BackupAndRestore(keras.callbacks.Callback, Resumes):
    """Callback that saves the state of a training run, and resumes an interrupted run.

    Start the same program again: `fit` resumes from the newest state, even within an
    epoch, and ends with the weights of an uninterrupted run: bit-identical with the
    same number of processes, equal up to rounding with another number. A state holds
    the weights, the optimizer with its loss scale, the metrics, the position in the
    data, the states of callbacks, and the random number generators of Python, NumPy and
    Keras. Your own callback is included, after all callbacks have run, if it has the
    methods `get_state()` and `set_state(state)`.

    Give it to `fit` on every rank. Only the chief writes, in a thread, to a temporary
    file that is renamed once it is complete and on disk. If a checksum shows that a
    file is damaged, the previous state is used, and a message says so.

    SIGTERM and SIGUSR1 to any rank, unless the program handles them, make all ranks
    finish the same step, save the state and exit with code 143.

    To return to its position in the data, `fit` reads the first batch of each completed
    epoch and all seen batches of the last one; to fill a `tf.data.Dataset.cache`, all
    of the first epoch; with `steps_per_epoch`, generators, or the workers of a
    `PyDataset`, all batches. The data must have the same order again: give
    `tf.data.Dataset.shuffle` a seed.

    Without a strategy, create the callback before the line that calls `fit`.

    Args:
        backup_dir: A folder for this training run only.
        save_freq: "epoch", or a number of batches to save within epochs, too. Default
            "epoch".
        double_checkpoint: Whether to keep the previous state as well. Default True.
        delete_checkpoint: Whether to remove the states after training. Default True.

    Raises:
        ValueError: If an argument is invalid; in `fit`, if the states belong to another
            model, optimizer or data, or if there are two of these callbacks.
        OSError: In `fit`, if no state can be read, one cannot be written, or another
            job that runs saves there.
        RuntimeError: In `fit`, without a strategy, if `fit` was looked up before the
            callback was created.

    Example:
        >>> import tempfile
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("adam", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> backup = BackupAndRestore(tempfile.mkdtemp(), save_freq=100)
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[backup])
    """

    _position: Position
    _collective: Collective
    _files: StateFiles
    _writer: StateWriter
    _received: list[str]
    # The seed and generators of this rank at the start of training.
    _began: Mapping[str, Any]

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        double_checkpoint: bool = True,
        delete_checkpoint: bool = True,
    ) -> None:
        super().__init__()
        _check(backup_dir, save_freq)
        self.backup_dir = Path(backup_dir)
        self.save_freq = save_freq
        self.double_checkpoint = double_checkpoint
        self.delete_checkpoint = delete_checkpoint
        # The state to resume from, until it is fully restored.
        self._state: snapshots.Snapshot | None = None
        install(is_alone=True)

    @contextlib.contextmanager
    def resuming(self, model: keras.Model) -> Iterator[Position]:
        """Read the newest state, and yield the position in the data during a `fit`."""
        self._collective = collective_of(model)
        self._files = StateFiles(self.backup_dir, 2 if self.double_checkpoint else 1)
        self._state = snapshots.read_newest(self._files, self._collective)
        if self._state is None:
            seed = random.SystemRandom().getrandbits(31)
            self._began = {"seed": seed, **random_states()}
        else:
            self._began = self._state.random_of(self._collective.rank)["began"]
            # Reading the data may draw random numbers.
            set_random_states(self._began)
        self._position = Position(self._began["seed"])
        self._writer = StateWriter(self._files)
        # Parameter servers end at the signal, so their chief cannot save any more.
        can_stop = servers_of(model) is None
        try:
            with received_stop_signals(can_stop=can_stop) as self._received:
                yield self._position
        finally:
            self._writer.close()
            self._files.unlock()
            self._state = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restore what other callbacks read; they have all begun."""
        self._position.reader.check_can_begin(within_epochs=self.save_freq != "epoch")
        # Steps of this epoch, all steps, and those until the last state.
        self._step = self._made = self._saved = 0
        # The first epoch of the training run, across restarts.
        self._first_epoch: int | None = None
        if self._state is not None:
            self._begin_with(self._state)
        self._note_saved(self._made)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restore the rest in the first epoch."""
        self._epoch = epoch
        if self._first_epoch is None:
            self._first_epoch = epoch
        if self._state is None:
            return
        facts = self._state.facts
        if facts["step"]:
            # Other callbacks have just reset themselves for a new epoch.
            self._state.restore(self.model, self._collective, self.others)
        seen = facts["epoch"] - facts["first_epoch"]
        self._position.reader.begin_at(seen, facts["step"], facts["num_batches"])
        self._restore_counts(self._state)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Count the steps, and save the state if due."""
        done = self._position.reader.steps
        self._made += done - self._step
        self._step = done
        length = self._position.reader.num_batches
        stops = self._stops_here()
        # `epoch_ended` saves after the last step of an epoch.
        if stops or (self._is_due() and (length is None or done < length)):
            self._save(self._epoch, done, logs)
        if stops:
            self._stop()

    def epoch_ended(self, epoch: int) -> None:
        """Save the state if due; `fit` calls this after all callbacks."""
        self._step = 0
        stops = self._stops_here()
        if stops or self.save_freq == "epoch" or self._is_due():
            self._save(epoch + 1, 0, None)
        if stops:
            self._stop()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Wait until the last state is on disk, or remove all states."""
        if self._state is not None:
            self._restore_counts(self._state)
        # A failed write does not matter if all states are removed.
        with contextlib.suppress(*([OSError] if self.delete_checkpoint else [])):
            self._wait_for_disk()
        if self.delete_checkpoint and self._collective.rank == 0:
            self._files.clear()

    def _is_due(self) -> bool:
        """Return whether `save_freq` batches have passed since the last state."""
        unsaved = self._made - self._saved
        return self.save_freq != "epoch" and unsaved >= int(self.save_freq)

    def _stops_here(self) -> bool:
        """Return whether all ranks stop now, because one has received a signal."""
        return self._collective.control.stops_here(bool(self._received))

    def _stop(self) -> NoReturn:
        """End the program on all ranks, once the state is on disk."""
        self._wait_for_disk()
        by_rank = self._collective.exchange("signals to stop", self._received[:1])
        if self._collective.rank == 0:
            rank = next((rank for rank, names in enumerate(by_rank) if names), 0)
            cause = "".join(f" {name} to rank {rank}:" for name in by_rank[rank])
            print(
                f"tfdist:{cause} stopped after {self._made} steps, whose state is in "
                f"{self.backup_dir}. Start the program again to resume.",
                file=sys.stderr,
            )
        sys.exit(_STOPPED_EXIT_CODE)

    def _begin_with(self, state: snapshots.Snapshot) -> None:
        """Resume a `fit` from a state."""
        facts = state.facts
        state.check(self.model, self._position.reader.num_batches, str(self.backup_dir))
        state.restore(self.model, self._collective, self.others)
        self._step, self._first_epoch = facts["step"], facts["first_epoch"]
        self._made = self._saved = facts["made"]
        epochs = self.params["epochs"]
        begin_at_epoch(self.model, epochs if facts["stops"] else facts["epoch"])
        if self._collective.rank == 0:
            print(
                f"tfdist: goes on after {self._made} steps, {self._step} of them in "
                f"epoch {facts['epoch'] + 1}, from the state in {self.backup_dir}.",
                file=sys.stderr,
            )

    def _restore_counts(self, state: snapshots.Snapshot) -> None:
        """Restore the metrics, the generators and the logs."""
        state.restore_counts(self.model, self._collective)
        self._position.logs = state.facts["logs"]
        self._state = None

    def _save(self, epoch: int, step: int, logs: dict[str, Any] | None) -> None:
        """Save the state between two steps."""
        self._wait_for_disk()
        self._saved = self._made
        arrays = {name: np.asarray(value) for name, value in (logs or {}).items()}
        facts = {
            "first_epoch": self._first_epoch,
            "epoch": epoch,
            "step": step,
            "made": self._made,
            "num_batches": self._position.reader.num_batches,
            "stops": bool(self.model.stop_training),
            "logs": {name: float(a) for name, a in arrays.items() if not a.ndim},
        }
        pack = snapshots.take(
            self.model, self._collective, self.others, facts, self._began
        )
        if pack is not None:
            self._writer.write(pack, functools.partial(self._note_saved, self._made))

    def _note_saved(self, made: int) -> None:
        """Tell the launcher how many steps the state on disk has made."""
        if self._collective.rank == 0:
            Launcher().note_saved(made)

    def _wait_for_disk(self) -> None:
        """Wait until the last state is on disk; if that fails, all ranks raise."""
        cause = None
        try:
            self._writer.wait()
        except OSError as error:
            cause = error
        text = str(cause) if cause else ""
        if text := self._collective.exchange("the state on disk", text)[0]:
            raise OSError(text) from cause


def _check(backup_dir: Any, save_freq: Any) -> None:
    """Refuse invalid arguments."""
    if not str(backup_dir) or "://" in str(backup_dir):
        raise ValueError(
            "backup_dir must name a folder of a file system. Received: backup_dir="
            f"{str(backup_dir)!r}. Give each training a folder of its own; mount a "
            "bucket to use it."
        )
    is_number = isinstance(save_freq, int) and not isinstance(save_freq, bool)
    if save_freq != "epoch" and not (is_number and save_freq > 0):
        raise ValueError(
            "save_freq must be 'epoch' or a positive number of batches. Received: "
            f"save_freq={save_freq!r}. Use 'epoch', or for example 100."
        )


@contextlib.contextmanager
def received_stop_signals(*, can_stop: bool) -> Iterator[list[str]]:
    """Yield the names of the signals received so far, which do not end the process."""
    received = [*_late]
    _late.clear()
    # A handler of the program stays. Python sets handlers in the main thread only.
    can_stop &= threading.current_thread() is threading.main_thread()
    ours = {n for n in _SIGNALS if can_stop and signal.getsignal(n) is signal.SIG_DFL}
    _release_in_forks()
    for each in ours:
        signal.signal(each, lambda n, _: received.append(signal.Signals(n).name))
    _held.update(ours)
    try:
        yield received
        _late.extend(received)
    finally:
        _release(ours)


def _release(signals: set[signal.Signals]) -> None:
    """Let signals end the process again."""
    for each in signals:
        signal.signal(each, signal.SIG_DFL)
    _held.difference_update(signals)


@functools.cache
def _release_in_forks() -> None:
    """Let a pool end its forked workers, of the input for example, by SIGTERM."""

    def release() -> None:
        signals = set(_held)
        _release(signals)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)

    # Python drops the signals that a child receives before these functions have run.
    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, _held),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _held),
        after_in_child=release,
    )
