"""Ranks that are threads of one process, of which one runs at a time."""

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import Collective, to_tensor
from tfdist.compat.keras.hooks import GradientPlan
from tfdist.compat.keras.positions import drawing_as_here
from tfdist.compat.undo import (
    Assignments,
    Attributes,
    apart,
    random_states,
    set_random_states,
)
from tfdist.gradients.reducer import GradientReducer
from tfdist.gradients.sparse import kind_of
from tfdist.training.hooks import StrategyKerasHooks

_COMBINED = {
    "sum": tf.add_n,
    "mean": lambda values: tf.add_n(values) / len(values),
    "min": lambda values: tf.reduce_min(tf.stack(values), 0),
    "max": lambda values: tf.reduce_max(tf.stack(values), 0),
}


class OutOfStep(RuntimeError):
    """Ranks that are in different calls, or of which one has ended."""


class SimulatedRanks:
    """Ranks that see their own values of the variables that they assign.

    A rank runs until it needs the others, in a call of its collective. Then the next
    one runs, from the same values of variables, states of random generators, and
    attributes of the `owners`, which are put back at the end.
    """

    def __init__(
        self, size: int, assignments: Assignments, owners: Sequence[Any] = ()
    ) -> None:
        self.size = size
        self.collectives = [_SimulatedCollective(self, rank) for rank in range(size)]
        self._assignments = assignments
        self._attributes = Attributes(owners)
        self._values: list[dict[int, tuple[Any, Any]]] = [{} for _ in range(size)]
        # The states of generators, and attributes.
        self._states: list[Any] = []
        # What ranks call or end with, and what they get.
        self._events: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._answers: list[SimpleQueue[Any]] = [SimpleQueue() for _ in range(size)]
        self._here = threading.local()

    @property
    def rank(self) -> int:
        """The rank of the current thread."""
        return getattr(self._here, "rank", 0)

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Call a function in each rank; return the results, or raise an error."""
        live = drawing_as_here(self._live)
        threads = [
            threading.Thread(target=live, args=(rank, function), daemon=True)
            for rank in range(self.size)
        ]
        # All start from the values of now.
        self._values = [self._values_now() for _ in range(self.size)]
        start = random_states(), self._attributes.take()
        self._states = [start] * self.size
        for thread in threads:
            thread.start()
        answer: Any = None
        try:
            while True:
                events = [self._run_on(rank, answer) for rank in range(self.size)]
                calls, answer = zip(*events, strict=True)
                failed = [value for call, value in events if call == "raised"]
                if failed:
                    raise failed[0]
                if len({*calls}) > 1:
                    raise OutOfStep(f"one rank is in {calls[0]}, another in {calls[1]}")
                if calls[0] == "returned":
                    return [*answer]
        finally:
            for answers, thread in zip(self._answers, threads, strict=True):
                answers.put(OutOfStep("another rank has failed"))
                thread.join()
            self._go_back(start)

    def meet(self, call: str, value: Any) -> Sequence[Any]:
        """Wait in a rank until all are in the same call; return their values."""
        self._events.put((call, value))
        answer = self._answers[self.rank].get()
        if isinstance(answer, OutOfStep):
            raise answer
        return answer

    def _live(self, rank: int, function: Callable[[int], Any]) -> None:
        """Run a function as a rank."""
        self._here.rank = rank
        first = self._answers[rank].get()
        if isinstance(first, OutOfStep):
            return
        try:
            with apart():
                event = "returned", function(rank)
        except BaseException as error:  # noqa: BLE001
            event = "raised", error
        self._events.put(event)

    def _run_on(self, rank: int, answer: Any) -> tuple[str, Any]:
        """Let a rank run until its next call, or its end."""
        for variable, value in self._values[rank].values():
            self._assignments.set(variable, value)
        self._go_back(self._states[rank])
        self._answers[rank].put(answer)
        event = self._events.get()
        self._states[rank] = random_states(), self._attributes.take()
        self._values[rank] = self._values_now()
        self._assignments.undo()
        return event

    def _go_back(self, state: Any) -> None:
        """Give random generators and attributes an earlier state."""
        of_random, attributes = state
        set_random_states(of_random)
        self._attributes.put_back(attributes)

    def _values_now(self) -> dict[int, tuple[Any, Any]]:
        """Return the values of all variables that have been assigned."""
        return {
            key: (variable, variable.read_value())
            for key, (variable, _) in self._assignments.before.items()
        }


class _SimulatedCollective(Collective):
    """The collective of one of several simulated ranks."""

    def __init__(self, ranks: SimulatedRanks, rank: int) -> None:
        self.rank, self.size = rank, ranks.size
        self._ranks = ranks

    def all_reduce(
        self, tensors: Sequence[Any], reduction: str = "sum", *, name: str
    ) -> list[Any]:
        by_rank = self._ranks.meet(f"all_reduce {name}", [*map(to_tensor, tensors)])
        return [_combined(values, reduction) for values in zip(*by_rank, strict=True)]

    def all_gather(self, tensor: Any, *, name: str) -> Any:
        return tf.concat(self._ranks.meet(f"all_gather {name}", to_tensor(tensor)), 0)

    def broadcast(
        self, tensors: Sequence[Any], root_rank: int = 0, *, name: str
    ) -> list[Any]:
        by_rank = self._ranks.meet(f"broadcast {name}", [*map(to_tensor, tensors)])
        return list(by_rank[root_rank])

    def exchange(self, name: str, value: Any, *, joint: bool = True) -> list[Any]:
        return list(self._ranks.meet(f"exchange {name}", value))

    def barrier(self, name: str = "barrier") -> None:
        self._ranks.meet(f"barrier {name}", None)

    def call(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()


def _combined(values: Sequence[Any], reduction: str) -> Any:
    """Combine the values of all ranks."""
    if not isinstance(values[0], tf.IndexedSlices):
        return _COMBINED[reduction]([*values])
    return tf.IndexedSlices(
        tf.concat([one.values for one in values], 0),
        tf.concat([tf.cast(one.indices, tf.int64) for one in values], 0),
        values[0].dense_shape,
    )


class SimulatedHooks(StrategyKerasHooks):
    """The hooks of a simulated rank, which decide what the traced step has decided."""

    def __init__(
        self,
        collective: Collective,
        reducer: GradientReducer,
        decisions: Sequence[bool] | None,
    ) -> None:
        super().__init__(collective, reducer)
        self.decisions_in_graph = None if decisions is None else iter(decisions)


class AsTraced(GradientReducer):
    """A reducer of gradients that are sparse only where those in the graph were."""

    _told_kind = staticmethod(kind_of)

    def __init__(self, collective: Collective, sparse: Collection[str]) -> None:
        super().__init__(collective)
        self._sparse = sparse

    def complete(
        self, gradients: Sequence[Any], variables: Sequence[Any], name: str
    ) -> GradientPlan:
        """Densify gradients that are sums in the graph."""
        paths = [getattr(v, "path", v.name) for v in variables]
        gradients = [
            g if g is None or path in self._sparse else tf.convert_to_tensor(g)
            for g, path in zip(gradients, paths, strict=True)
        ]
        return super().complete(gradients, variables, name)


class Current:
    """The one of several objects that belongs to the current rank."""

    def __init__(self, objects: Sequence[Any], rank: Callable[[], int]) -> None:
        vars(self).update(_objects=objects, _rank=rank)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects[self._rank()], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._objects[self._rank()], name, value)
