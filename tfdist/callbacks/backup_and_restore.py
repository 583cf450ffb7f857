"""BackupAndRestore: a training that is cut off goes on as if nothing had been."""

import contextlib
import os
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from tfdist.callbacks import snapshots
from tfdist.callbacks.peers import collective_of
from tfdist.callbacks.random_states import random_states, set_random_states
from tfdist.callbacks.state_files import StateFiles
from tfdist.callbacks.state_writer import StateWriter
from tfdist.callbacks.training_state import TrainingState
from tfdist.collectives import Collective
from tfdist.compat.keras.install import install
from tfdist.compat.keras.positions import Position, Resumes, begin_at_epoch
from tfdist.rendezvous.progress import Progress

# Not when one is made: where that is an argument, `fit` itself was looked up before.
install(is_alone=True)


class BackupAndRestore(keras.callbacks.Callback, Resumes):  # type: ignore[misc]
    """Keeps the state of a training, and lets it go on where it was cut off.

    Start the same program again: `fit` begins where the newest state was taken, also in
    the midst of an epoch, and ends with the weights of a training that nobody has
    disturbed, to the bit with as many processes as before, up to rounding with others.
    A state holds the weights, the optimizer and its loss scale, the metrics, where in
    the data the training was, what callbacks remember, and the generators of random
    numbers of Python, NumPy and Keras. A callback of your own takes part with methods
    `get_state()` and `set_state(state)`; it is asked after all callbacks were called.

    Give it on every rank. The chief alone writes: beside the training, into a new file
    that takes its name when it is whole and on disk. A file that is damaged is noticed
    by its checksum; the one before it is used instead, and a line says so.

    To get to its place in the data, a `fit` reads the first batch of each whole epoch,
    and all that the last one has seen; all of them with `steps_per_epoch`, generators
    and the workers of a `PyDataset`. The data must come in the same order again: where
    you shuffle a `tf.data.Dataset` yourself, give it a seed.

    Args:
        backup_dir: The folder, for this training alone.
        save_freq: "epoch", or after how many batches; then also in the midst of an
            epoch. Default "epoch".
        double_checkpoint: Whether to keep the state before the newest one, too. Default
            True.
        delete_checkpoint: Whether to remove the states when the training is over.
            Default True.

    Raises:
        ValueError: If an argument is not of these; in `fit`, if the states are those of
            another model, optimizer or data, or if there are two of these callbacks.
        OSError: In `fit`, if no state can be read, or one cannot be written.

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
    # The seeds and generators of this rank when the training began.
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
        # What is gone on from, until all of it has been given back.
        self._state: TrainingState | None = None
        self._progress: Progress | None = None

    @contextlib.contextmanager
    def resuming(self, model: keras.Model) -> Iterator[Position]:
        """Read the newest state, and keep the place in the data; `fit` calls it."""
        self._collective = collective_of(model)
        self._files = StateFiles(self.backup_dir, 2 if self.double_checkpoint else 1)
        self._state = snapshots.read_newest(self._files, self._collective)
        if self._state is None:
            seed = random.SystemRandom().getrandbits(31)
            self._began = {"seed": seed, **random_states()}
        else:
            self._began = self._state.random_of(self._collective.rank)["began"]
            # What reads the data may draw from them.
            set_random_states(self._began)
        self._position = Position(self._began["seed"])
        self._writer = StateWriter(self._files)
        try:
            yield self._position
        finally:
            self._writer.close()
            if self._progress is not None:
                self._progress.close()
            self._state = self._progress = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Give back what other callbacks look at, which have all begun."""
        del logs
        self._position.reader.check_can_begin(within_epochs=self.save_freq != "epoch")
        # The steps of this epoch, since the last state, of all epochs, of whole epochs.
        self._step = self._unsaved = self._made = self._made_before = 0
        # That of the training, whoever began it.
        self._first_epoch: int | None = None
        if self._state is not None:
            self._begin_with(self._state)
        if self._collective.rank == 0:
            self._progress = Progress.from_environment()
        if self._progress is not None:
            self._progress.saved(self._made)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Give back the rest, if it is the first epoch."""
        del logs
        self._epoch = epoch
        if self._first_epoch is None:
            self._first_epoch = epoch
        if self._state is None:
            return
        facts = self._state.facts
        if facts["step"]:
            # Others have taken it for the beginning of the epoch.
            self._restore(self._state)
        seen = facts["epoch"] - facts["first_epoch"]
        self._position.reader.begin_at(seen, facts["step"], facts["num_batches"])
        self._restore_counts(self._state)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Count, and keep the state if it is time."""
        del batch
        done = self._position.reader.steps
        self._unsaved += done - self._step
        self._step = done
        self._made = self._made_before + done
        length = self._position.num_batches
        # After the last step of an epoch comes its end, which belongs to it.
        if self._is_time() and (length is None or done < length):
            self._save(self._epoch, done, logs)

    def epoch_ended(self, epoch: int) -> None:
        """Keep the state if it is time; `fit` calls it after all callbacks."""
        self._step, self._made_before = 0, self._made
        if self.save_freq == "epoch" or self._is_time():
            self._save(epoch + 1, 0, None)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Wait until the last state is on disk, or remove all of them."""
        del logs
        if self._state is not None:
            self._restore_counts(self._state)
        # Nobody needs the last state if all of them are removed.
        with contextlib.suppress(*([OSError] if self.delete_checkpoint else [])):
            self._writer.wait()
        if self.delete_checkpoint and self._collective.rank == 0:
            self._files.clear()

    def _is_time(self) -> bool:
        """Say whether so many steps were made that their state is to be kept."""
        return self.save_freq != "epoch" and self._unsaved >= int(self.save_freq)

    def _begin_with(self, state: TrainingState) -> None:
        """Begin a `fit` where a state was taken."""
        facts = state.facts
        length = self._position.num_batches
        snapshots.check(state, self.model, length, str(self.backup_dir))
        self._restore(state)
        self._step, self._made = facts["step"], facts["made"]
        self._first_epoch = facts["first_epoch"]
        self._made_before = self._made - self._step
        epochs = self.params["epochs"]
        begin_at_epoch(self.model, epochs if facts["stops"] else facts["epoch"])
        if self._collective.rank == 0:
            print(
                f"tfdist: goes on after {self._made} steps, {self._step} of them in "
                f"epoch {facts['epoch'] + 1}, from the state in {self.backup_dir}.",
                file=sys.stderr,
            )

    def _restore(self, state: TrainingState) -> None:
        """Give back all but the counts of an epoch."""
        snapshots.restore(state, self.model, self._collective, self.others)

    def _restore_counts(self, state: TrainingState) -> None:
        """Give back the rest."""
        snapshots.restore_counts(state, self.model, self._collective)
        self._position.logs = state.facts["logs"]
        self._state = None

    def _save(self, epoch: int, step: int, logs: dict[str, Any] | None) -> None:
        """Keep the state between two steps."""
        self._unsaved = 0
        facts = {
            "first_epoch": self._first_epoch,
            "epoch": epoch,
            "step": step,
            "made": self._made,
            "num_batches": self._position.num_batches,
            "stops": bool(self.model.stop_training),
            "logs": snapshots.numbers_in(logs or {}),
        }
        pack = snapshots.take(
            self.model, self._collective, self.others, facts, self._began
        )
        if pack is not None:
            self._writer.write(pack)
            if self._progress is not None:
                self._progress.saved(self._made)


def _check(backup_dir: Any, save_freq: Any) -> None:
    """Refuse arguments that cannot be."""
    if not str(backup_dir) or "://" in str(backup_dir):
        raise ValueError(
            "backup_dir must name a folder of a file system. Received: backup_dir="
            f"{str(backup_dir)!r}. Give each training one of its own; mount a bucket."
        )
    is_number = isinstance(save_freq, int) and not isinstance(save_freq, bool)
    if save_freq != "epoch" and not (is_number and save_freq > 0):
        raise ValueError(
            "save_freq must be 'epoch' or a number of batches from 1. Received: "
            f"save_freq={save_freq!r}. Use 'epoch', or such as 100."
        )
