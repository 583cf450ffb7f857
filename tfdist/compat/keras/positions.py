"""Position in the data from which a `fit` resumes, and Keras's global seed."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from keras.src.backend.common import global_state
from keras.src.backend.common.global_state import get_global_attribute
from keras.src.random.seed_generator import global_seed_generator

from tfdist.compat.patching import within

# What Keras keeps for each thread, and draws from.
_RANDOM = ("global_random_seed", "global_seed_generator")


class Position:
    """Position in the data of one `fit`, and the seed of its array permutations."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        # The logs of the last step, if the epoch has no further step.
        self.logs: dict[str, Any] | None = None
        self._reader: Any = None

    def attach(self, reader: Any) -> None:
        """Set the reader of the training data; later calls (validation) are no-ops."""
        if self._reader is None:
            self._reader = reader

    def is_read_by(self, reader: Any) -> bool:
        """Return whether this reader reads the training data."""
        return reader is not None and reader is self._reader

    @property
    def reader(self) -> Any:
        """The reader of the training data."""
        assert self._reader is not None, "fit creates it before it calls callbacks"
        return self._reader

    def take_logs(self, logs: Any) -> Any:
        """Return the logs of an epoch, or an earlier `fit`'s if `logs` is empty."""
        before, self.logs = self.logs, None
        return logs or before or logs


_CURRENT: ContextVar[Position | None] = ContextVar("position", default=None)


def current_position() -> Position | None:
    """Return the position of the current `fit`, if a callback tracks it."""
    return _CURRENT.get()


class Resumes:
    """Base of a callback that resumes an interrupted `fit`; it is called last."""

    # The other callbacks of the `fit`.
    others: list[Any]

    def resuming(self, model: Any) -> AbstractContextManager[Position]:
        """Return the context of a `fit`, entered before it reads data."""
        raise NotImplementedError

    def epoch_ended(self, epoch: int) -> None:
        """Handle the end of an epoch, after ranks have agreed on decisions."""


@contextmanager
def resumed_by(callback: Resumes, model: Any) -> Iterator[None]:
    """Let a callback track the position of the `fit` in the block."""
    with callback.resuming(model) as position:
        try:
            with within(_CURRENT, position):
                yield
        finally:
            # Keras would start the next fit there, too.
            model._initial_epoch = None


def begin_at_epoch(model: Any, epoch: int) -> None:
    """Set the first epoch of the `fit` that is starting."""
    model._initial_epoch = epoch


def has_random_seed() -> bool:
    """Return whether the program has called `keras.utils.set_random_seed`."""
    return get_global_attribute("global_random_seed") is not None


def global_seed_state() -> list[int] | None:
    """Return the state of Keras's global seed generator, None if it was never used."""
    generator: Any = get_global_attribute("global_seed_generator")
    if generator is None:
        return None
    return generator.state.numpy().tolist()


def set_global_seed_state(state: list[int]) -> None:
    """Set the state of Keras's global seed generator."""
    global_seed_generator().state.assign(state)


def drawing_as_here(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that in other threads draws from this thread's generator."""
    here = vars(global_state.GLOBAL_STATE_TRACKER)

    def call(*args: Any, **kwargs: Any) -> Any:
        there = vars(global_state.GLOBAL_STATE_TRACKER)
        there.update({name: here[name] for name in _RANDOM if name in here})
        try:
            return function(*args, **kwargs)
        finally:
            # It may have made the generator.
            here.update({name: there[name] for name in _RANDOM if name in there})

    return call
