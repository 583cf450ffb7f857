"""Variables made in the scope of a strategy, with which all ranks start equally."""

import gc
import weakref
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.training.state import broadcast_equal


class CreatedVariables:
    """Keeps what was made, as far as the ranks may not be equal yet.

    Args:
        collective: How the processes talk.
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._created: list[weakref.ref[Any]] = []
        self._late: list[Any] = []

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._created)

    def add(self, variable: Any) -> None:
        """Note a variable that was made."""
        self._created.append(weakref.ref(variable))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def start_equal(self) -> None:
        """Give those made since the last time rank 0's values, on all ranks."""
        if self._collective.size == 1 or not self._created:
            return
        # What is garbage must be so on every rank.
        gc.collect()
        created = self._alive(0)
        self._created.clear()
        with tf.init_scope():
            broadcast_equal(
                [v for v in created if v.is_initialized()],
                "the scope",
                self._collective,
            )

    def start_equal_since(self, known: int) -> None:
        """Give those that a step has made the same values on all ranks.

        Those that get their values only when the graph is complete have to wait.

        Args:
            known: How many there were before the step.
        """
        variables = self._alive(known)
        with tf.init_scope():
            ready = [v for v in variables if v.is_initialized()]
            if ready:
                broadcast_equal(ready, "the step", self._collective)
        ids = {id(variable) for variable in ready}
        self._late += [v for v in variables if id(v) not in ids]

    def start_late_equal(self) -> None:
        """Give those that had to wait the same values."""
        late, self._late = self._late, []
        if late:
            broadcast_equal(late, "the first step", self._collective)

    def _alive(self, known: int) -> list[Any]:
        """Return those made since then that are still there."""
        return [v for ref in self._created[known:] if (v := ref()) is not None]
