"""Where in its data a `fit` begins: at the start, or where another was cut off."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class ReadsData(Protocol):
    """What reads the data of a `fit`, epoch by epoch."""

    # How many batches of an epoch were given out.
    steps: int

    @property
    def num_batches(self) -> int | None:
        """How many batches an epoch has; None if nobody has counted them yet."""

    def check_can_begin(self, *, within_epochs: bool) -> None:
        """Refuse data that cannot be read past."""

    def begin_at(self, epochs: int, steps: int, num_batches: int | None) -> None:
        """Read past what an earlier `fit` has seen."""


class Position:
    """The place in the data of one `fit`.

    Args:
        seed: What permutations of arrays come from, if the user has set no seed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        # What the last step has returned, if no step is left of the epoch.
        self.logs: dict[str, Any] | None = None
        self._reader: ReadsData | None = None

    def attach(self, reader: ReadsData) -> None:
        """Take what reads the training data; others, of validations, come later.

        Args:
            reader: What reads.
        """
        if self._reader is None:
            self._reader = reader

    def is_read_by(self, reader: Any) -> bool:
        """Say whether it is this that reads the training data.

        Args:
            reader: What reads the data of some `fit` or `evaluate`; None of neither.
        """
        return reader is not None and reader is self._reader

    @property
    def num_batches(self) -> int | None:
        """How many batches an epoch has; None if nobody has counted them yet."""
        return self.reader.num_batches

    @property
    def reader(self) -> ReadsData:
        """What reads the training data."""
        assert self._reader is not None, "fit makes it before it calls callbacks"
        return self._reader

    def take_logs(self, logs: Any) -> Any:
        """Return the logs of an epoch's last step, which may be that of an earlier fit.

        Args:
            logs: Those of the last step of this one; empty if there was none.
        """
        before, self.logs = self.logs, None
        return logs or before or logs


_CURRENT: ContextVar[Position | None] = ContextVar("position", default=None)


def current_position() -> Position | None:
    """Return the position of the `fit` that is going on, if anything keeps it."""
    return _CURRENT.get()


class Resumes:
    """A callback that lets a `fit` begin where an earlier one was cut off.

    It is called last of all callbacks.
    """

    # The other callbacks of the `fit`.
    others: list[Any]

    def resuming(self, model: Any) -> AbstractContextManager[Position]:
        """Mark a `fit` of a model, before it makes anything of its data.

        Args:
            model: The model.

        Returns:
            A context, which gives the position.
        """
        raise NotImplementedError

    def epoch_ended(self, epoch: int) -> None:
        """Take note that an epoch has ended, and that ranks agree on what was decided.

        Args:
            epoch: The epoch, from 0.
        """


@contextmanager
def resumed_by(callback: Resumes, model: Any) -> Iterator[None]:
    """Let a callback keep the position of a `fit`.

    Args:
        callback: The callback.
        model: What is fitted.

    Yields:
        Nothing; the block is the `fit`.
    """
    with callback.resuming(model) as position:
        token = _CURRENT.set(position)
        try:
            yield
        finally:
            _CURRENT.reset(token)
            # Keras would begin the next one there, too.
            model._initial_epoch = None


def begin_at_epoch(model: Any, epoch: int) -> None:
    """Let the `fit` that is beginning leave epochs out.

    Args:
        model: The model.
        epoch: The first epoch that it makes.
    """
    model._initial_epoch = epoch
