"""The check of the first step of a `fit` or `evaluate`, on the chief."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from tfdist.cluster import facts
from tfdist.cluster.model import Membership, Place
from tfdist.collectives.base import Collective
from tfdist.compat.owned_variables import owner_of
from tfdist.compat.undo import drawing_apart, undone
from tfdist.first_step.comparison import (
    Cause,
    Difference,
    differences,
    explained,
    least_precise,
    without_rounding,
)
from tfdist.first_step.observation import Observer, Value, observing
from tfdist.first_step.rows import FirstRows, Rows
from tfdist.first_step.simulation import (
    AsTraced,
    Current,
    SimulatedHooks,
    SimulatedRanks,
)
from tfdist.gradients.sparse import SPARSE
from tfdist.observing import current_observer
from tfdist.training.hooks import StrategyKerasHooks

CHOICES = ("warn", "raise", "off")
_STEPS = {"train_step": "first step", "test_step": "first step of evaluate"}
# Eager recurrent layers take as long for each of their steps.
_LONGEST = 64
# The check keeps the gradients of each simulated rank, those of tables as dense ones.
_MOST_WEIGHTS = 2**27
_LONGEST_REASON = 300


def check_choice(choice: str) -> None:
    """Raise `ValueError` for an unknown choice of what a difference does."""
    if choice not in CHOICES:
        raise ValueError(
            f"check_first_step must be one of {', '.join(CHOICES)}. Received: "
            f"check_first_step={choice!r}. Use 'warn', the default."
        )


class FirstStepCheck:
    """A comparison of the first step with plain Keras, by running it twice more.

    A few rows go through the step whole, as on one process, and cut for two ranks that
    are simulated in this process. If they differ, the rows also go through it whole in
    another order, which shows its rounding. What the step assigns is undone.
    """

    def __init__(self, choice: str, extended: Any) -> None:
        self.choice = choice
        self.rows = FirstRows(extended.joined.size)
        self._extended = extended
        # What the last training step of a model has shown to differ, by kind and name.
        self._told: WeakKeyDictionary[Any, set[tuple[str, str]]] = WeakKeyDictionary()

    def difference(self, trainer: Any, what: str) -> str | None:
        """Describe how a step of a model differs from that of one process, if so.

        `what` is "train_step" or "test_step".
        """
        rows = self.rows.take()
        if rows is None:
            return None
        reason = _left_out(trainer, rows)
        try:
            if reason is None:
                with _eagerly(), drawing_apart():
                    cause = self._compare(trainer, what, rows)
                if cause is None:
                    return None
                current_observer().see_cause(cause)
                return cause.as_warning()
        # Whatever a script does, it must not stop the training.
        except Exception as error:  # noqa: BLE001
            reason = f"{type(error).__name__}: {error}"
        reason = reason[:_LONGEST_REASON]
        text = f"tfdist: The {_STEPS[what]} is not checked: {reason}"
        print(text, file=sys.stderr)
        return None

    def _compare(self, trainer: Any, what: str, rows: Rows) -> Cause | None:
        """Compare the step of one process with that of two ranks."""
        values = partial(self._values, trainer, getattr(trainer, what))
        dtype, half = _least_precise(trainer), rows.number // 2

        def differences_of(rows: Rows, middle: int) -> list[Difference]:
            [one] = values(rows, [0, rows.number])
            ranks = values(rows, [0, middle, rows.number])
            by_rank = (differences(one, other, dtype) for other in ranks)
            found = next(filter(None, by_rank), [])
            if not found:
                return []
            # What another order of the rows changes on one process is rounding.
            [other] = values(rows.shuffled(), [0, rows.number])
            return without_rounding(found, differences(one, other, dtype))

        found = differences_of(rows, half + 1)
        names = {one[:2] for one in found}
        if what == "train_step":
            self._told[trainer] = names
        elif names <= self._told.get(trainer, set()):
            return None
        if not found:
            return None
        evenly = differences_of(rows._replace(number=2 * half), half)
        return explained(evenly or found, _STEPS[what], is_even=bool(evenly))

    def _values(
        self, trainer: Any, method: Any, rows: Rows, bounds: Sequence[int]
    ) -> list[list[Value]]:
        """Return what a `method` computes on each of the ranks that share the rows."""
        shards = [rows.shard(*part) for part in pairwise(bounds)]
        of_process = self._extended.process_hooks
        replica = getattr(of_process, "replicas", [of_process])[0]
        # The paths of weights whose gradients are slices of rows.
        kinds = replica.traced_kinds().items()
        sparse = {path for path, kind in kinds if kind == SPARSE}
        with undone() as assignments:
            layers = trainer._flatten_layers(include_self=False)
            ranks = SimulatedRanks(len(shards), assignments, [trainer, *layers])
            decisions = None if trainer.run_eagerly else replica.decisions
            hooks = [
                SimulatedHooks(each, AsTraced(each, sparse), decisions)
                for each in ranks.collectives
            ]
            observer = Observer(trainer, assignments, sparse)

            def reduce(gradients: Any, variables: Any) -> Any:
                mine = hooks[ranks.rank]
                prepared = mine.prepare_gradients(gradients, variables)
                return mine.reduce_gradients(prepared)

            def step(rank: int) -> list[Value]:
                mine = hooks[rank]
                with self._in_replica(trainer, rank, mine):
                    mine.make_step(method, shards[rank], trainer, is_joint=True)
                    states = mine.states_of_all(trainer.metrics_variables)
                    return observer.values(states)

            with (
                observing(trainer, observer, reduce),
                self._standing(hooks, ranks.collectives, lambda: ranks.rank),
            ):
                observer.reset_metrics()
                return ranks.run(step)

    @contextmanager
    def _standing(
        self,
        hooks: Sequence[StrategyKerasHooks],
        collectives: Sequence[Collective],
        rank: Callable[[], int],
    ) -> Iterator[None]:
        """Let the strategy be that of other ranks; `rank` returns the current one."""
        size = len(hooks)

        def member() -> Membership:
            return Membership(place=Place(rank(), size, rank(), size))

        with ExitStack() as stack:
            current = [Current(each, rank) for each in (hooks, collectives)]
            stack.enter_context(self._extended.standing_in(*current))
            if self._extended.collective.size > 1:
                stack.enter_context(facts.simulating(member))
            yield

    @contextmanager
    def _in_replica(
        self, trainer: Any, rank: int, hooks: StrategyKerasHooks
    ) -> Iterator[None]:
        """Enter the replica of a rank, in which no variable is created."""
        with (
            trainer.distribute_strategy.scope(),
            tf.variable_creator_scope(_refuse),
            tf.summary.record_if(False),
            self._extended.replica_of(rank, hooks),
        ):
            yield


def _refuse(next_creator: Any, **kwargs: Any) -> None:
    """Refuse to create a variable, which could not be undone."""
    raise RuntimeError("the step creates a variable each time")


@contextmanager
def _eagerly() -> Iterator[None]:
    """Run the functions of a script eagerly."""
    are_eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(are_eager)


def _least_precise(trainer: Any) -> str:
    """Return the least precise type that a model computes in."""
    found = {str(layer.compute_dtype) for layer in trainer._flatten_layers()}
    found |= {str(v.dtype) for v in trainer.trainable_variables}
    return least_precise(found, "float64")


def _left_out(trainer: Any, rows: Rows) -> str | None:
    """Return why the check would take too much time or memory, None if it would not."""
    if any(owner_of(variable) is not None for variable in trainer.variables):
        return "each rank has some rows of a table, by shard_embeddings"
    weights = sum(math.prod(v.shape) for v in trainer.trainable_variables)
    if weights > _MOST_WEIGHTS:
        return f"the model has {weights:,} weights, more than {_MOST_WEIGHTS:,}"
    tensors = (x for x in tf.nest.flatten(rows.data) if isinstance(x, tf.Tensor))
    longest = max((x.shape[1] for x in tensors if x.shape.rank > 1), default=0)
    for layer in trainer._flatten_layers():
        if isinstance(layer, keras.layers.RNN) and longest > _LONGEST:
            return f"{layer.name} runs over more than {_LONGEST} steps"
    return None
