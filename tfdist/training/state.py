"""Variables and random generators: equal on all ranks at the start, and kept equal."""

import gc
import itertools
import pickle
import random
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import tensorflow as tf

from tfdist.collectives.base import Collective
from tfdist.compat.keras.layers import tables_of, weights_of
from tfdist.compat.keras.learning_rates import accumulates, variables_of
from tfdist.compat.keras.positions import (
    global_seed_state,
    has_random_seed,
    set_global_seed_state,
)
from tfdist.compat.keras.variables import raw_state_of
from tfdist.compat.mirrored import assign_here, value_here, values_here
from tfdist.compat.owned_variables import owner_of
from tfdist.gradients.buckets import plan_buckets
from tfdist.training.step import Step, is_weight, state_of_layers

# A broadcast takes twice its size in memory.
_BROADCAST_BYTES = 8 * 2**20


def start_equal(trainer: Any, collective: Collective, root_rank: int = 0) -> None:
    """Broadcast the variables that all ranks keep, of a model and its optimizer."""
    _check_equal_tables(trainer, collective)
    # Each rank holds its own part of these sums.
    parts = {id(variable) for variable in trainer.metrics_variables}
    variables = [
        variable
        for variable in variables_of(trainer)
        if id(variable) not in parts
        and "gradient_accumulator" not in variable.path
        and owner_of(variable) is None
    ]
    variables += raw_state_of(trainer)
    # Not the model's name, whose counter may differ on the chief.
    broadcast_equal(variables, "the model", collective, root_rank)


def _check_equal_tables(trainer: Any, collective: Collective) -> None:
    """Raise `RuntimeError` if preprocessing layers differ between ranks."""
    mine = tables_of(trainer)
    if not mine:
        return
    first, *others = collective.exchange("tables of layers", [*mine.values()])
    for rank, theirs in enumerate(others, 1):
        for name, one, other in zip(mine, first, theirs, strict=False):
            is_text = isinstance(one, str)
            # Other processors may round the mean of the same data in other ways.
            if one != other if is_text else not np.allclose(one, other, rtol=1e-4):
                raise RuntimeError(
                    "Each rank must adapt a layer to the same data, or give it the "
                    "same vocabulary. Received: other values in the layer "
                    f"{name!r} on rank {rank} than on rank 0. Adapt it to the whole "
                    "data on each rank, and sort a vocabulary that comes from a set."
                )


def broadcast_equal(
    variables: list[Any], where: str, collective: Collective, root_rank: int = 0
) -> None:
    """Broadcast variables from one rank; `where` names their owner in errors."""
    _check_equal_specs(variables, where, collective, root_rank)
    dtypes = [tf.as_dtype(variable.dtype) for variable in variables]
    sizes = [
        dtype.size * tf.TensorShape(variable.shape).num_elements()
        for dtype, variable in zip(dtypes, variables, strict=True)
    ]
    for bucket in plan_buckets(sizes, dtypes, _BROADCAST_BYTES, _BROADCAST_BYTES):
        group = [variables[i] for i in bucket]
        values = collective.broadcast(
            [value_here(v) for v in group],
            root_rank,
            name=f"variables of {where}",
        )
        if collective.rank != root_rank:
            for variable, value in zip(group, values, strict=True):
                assign_here(variable, value)


def average_state(variables: list[Any], collective: Collective) -> None:
    """Average float variables of layers over ranks."""
    values = [tf.reduce_mean(values_here(variable), 0) for variable in variables]
    means = collective.all_reduce(values, "mean", name="state of the model")
    for variable, mean in zip(variables, means, strict=True):
        variable.assign(mean)


class NotedState:
    """What the steps of a process have assigned, on all of its devices."""

    def __init__(self) -> None:
        # The layer state that may differ between ranks, by model and by id.
        self._apart: WeakKeyDictionary[Any, dict[int, Any]] = WeakKeyDictionary()
        # Indices of the layer state that the ranks agreed to reduce, by model, and by
        # rank, its state, the number of the agreement in a step, and what it assigns.
        self.agreed: WeakKeyDictionary[Any, dict[Any, list[int]]] = WeakKeyDictionary()
        # The Keras variables that custom loops assign, by id.
        self.in_loops: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def add_apart(self, trainer: Any, variables: Sequence[Any]) -> None:
        """Record layer state that a step has left different between ranks."""
        if variables:
            known = self._apart.setdefault(trainer, {})
            known.update((id(variable), variable) for variable in variables)

    def apart_in(self, trainer: Any, variables: Sequence[Any]) -> list[int]:
        """Return the positions of what was recorded of a model in its variables."""
        known = self._apart.get(trainer, {})
        return [i for i, variable in enumerate(variables) if id(variable) in known]


@contextmanager
def put_back(step: Step) -> Iterator[None]:
    """Undo a placeholder step's changes to metrics and layer statistics.

    Values from other ranks stay. Integers, such as step counters and seed states,
    still advance, because they advance on the other ranks.
    """
    trainer, (is_stand_in,) = step.trainer, step.shard.stand_in
    variables = {
        id(v): v for v in [*trainer.metrics_variables, *state_of_layers(trainer)]
    }
    before = {key: tf.convert_to_tensor(v) for key, v in variables.items()}
    yield
    for key, variable in variables.items():
        if key in step.assigned:
            now = tf.convert_to_tensor(variable)
            assign_here(variable, tf.where(is_stand_in, before[key], now))


@contextmanager
def follow_rows(
    step: Step, is_uneven: Any, agreed_state: Callable[[Step], Sequence[Any]]
) -> Iterator[None]:
    """Reduce the state and weights that a step assigns beside or after its gradients.

    Steps that accumulate gradients leave state apart, unless their rows are
    `is_uneven`.
    """
    if not accumulates(step.trainer):
        yield
        _reduce_by_rows(step, agreed_state(step))
        return
    # The ranks' statistics of former steps weigh the same, whatever their rows now.
    frozen = {id(variable) for variable in weights_of(step.trainer)}
    former = [v for v in state_of_layers(step.trainer) if id(v) not in frozen]
    _reduce_if(is_uneven, step.mean, former)
    yield
    has_weights = any(map(is_weight, step.assigned.values()))
    if not tf.executing_eagerly() or is_uneven or has_weights:
        agreed = agreed_state(step)
        _reduce_by_rows(step, [v for v in agreed if is_weight(v)])
        state = [v for v in agreed if not is_weight(v)]
        _reduce_if(is_uneven, step.sum_of_shares, state)


def _reduce_by_rows(step: Step, variables: Sequence[Any]) -> None:
    """Assign the means of variables over ranks, weighted by rows."""
    if variables:
        values = [tf.convert_to_tensor(variable) for variable in variables]
        step.reduced_state(variables, step.sum_of_shares(values))


def _reduce_if(
    condition: Any, reduce: Callable[[list[Any]], list[Any]], variables: Sequence[Any]
) -> None:
    """Assign reduced values to variables, if the condition holds on all ranks."""

    def assign() -> None:
        values = [tf.convert_to_tensor(variable) for variable in variables]
        for variable, value in zip(variables, reduce(values), strict=True):
            assign_here(variable, value)

    if variables:
        tf.cond(condition, assign, lambda: None)


def _check_equal_specs(
    variables: list[Any], where: str, collective: Collective, root_rank: int
) -> None:
    """Raise `RuntimeError` if variables or root ranks differ between ranks."""
    specs = [
        [list(v.shape), tf.as_dtype(v.dtype).name, getattr(v, "path", v.name)]
        for v in variables
    ]
    by_rank = collective.exchange(f"the variables of {where}", [root_rank, specs])
    roots = [root for root, _ in by_rank]
    if len(set(roots)) > 1:
        raise RuntimeError(
            "The ranks are to start from the variables of different ranks. Received: "
            f"root_rank={roots}, by rank. Give the same BroadcastVariables callback on "
            "every rank."
        )
    for rank, (_, theirs) in enumerate(by_rank):
        for mine, other in itertools.zip_longest(specs, theirs):
            # Not the paths, whose layer counters may differ on the chief.
            if mine is None or other is None or mine[:2] != other[:2]:
                raise RuntimeError(
                    f"The ranks have different variables in {where}. Received: "
                    f"{_describe(mine)} on rank {collective.rank}, {_describe(other)} "
                    f"on rank {rank}. Make the same ones on every rank, and others "
                    "outside of strategy.scope()."
                )


def _describe(spec: list[Any] | None) -> str:
    """Describe a variable in an error."""
    return "none" if spec is None else f"{spec[2]} {tuple(spec[0])} {spec[1]}"


class CreatedVariables:
    """The new variables whose values may still differ between ranks."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._created: list[Callable[[], Any]] = []
        self._late: list[Any] = []

    @property
    def count(self) -> int:
        """The number of new variables."""
        return len(self._created)

    def add(self, variable: Any) -> None:
        """Record a new variable."""
        self._created.append(weakref.ref(variable))

    def forget(self, variable: Any) -> None:
        """Leave out a variable that not every rank keeps; the others keep numbers."""
        for number in reversed(range(self.count)):
            if self._created[number]() is variable:
                self._created[number] = lambda: None
                return

    @tf.autograph.experimental.do_not_convert
    def start_equal(self) -> None:
        """Broadcast rank 0's values of all new variables."""
        if self._collective.size == 1 or not self._created:
            return
        gc.collect()
        made, created = self.count, self._alive(0)
        self._created.clear()
        with tf.init_scope():
            alive = {number: v for number, v in created.items() if v.is_initialized()}
            by_rank = self._collective.exchange("the new variables", [made, [*alive]])
            if all(made == theirs for theirs, _ in by_rank):
                # A thread may still hold what other ranks have let go.
                everywhere = set.intersection(*(set(theirs) for _, theirs in by_rank))
                alive = {number: alive[number] for number in sorted(everywhere)}
            broadcast_equal([*alive.values()], "the scope", self._collective)

    def start_equal_since(self, known: int, trainer: Any) -> None:
        """Broadcast the variables that a step created, after the first `known`.

        Those that are initialized only when the graph is complete are deferred.
        """
        # Metrics have counted each rank's own rows by then.
        of_metrics = {id(variable.value) for variable in trainer.metrics_variables}
        variables = [v for v in self._alive(known).values() if id(v) not in of_metrics]
        with tf.init_scope():
            ready = [v for v in variables if v.is_initialized()]
            if ready:
                broadcast_equal(ready, "the step", self._collective)
        ids = {id(variable) for variable in ready}
        self._late += [v for v in variables if id(v) not in ids]

    def start_late_equal(self) -> None:
        """Broadcast the deferred variables."""
        late, self._late = self._late, []
        if late:
            broadcast_equal(late, "the first step", self._collective)

    def _alive(self, known: int) -> dict[int, Any]:
        """Return the new variables after the first `known` that exist, by number."""
        created = enumerate(self._created[known:], known)
        return {number: v for number, ref in created if (v := ref()) is not None}


def agree_on_seeds(collective: Collective) -> int:
    """Seed Python's, NumPy's and Keras's generators alike; return an agreed seed.

    Generators whose states are equal on all ranks stay as they are, and all do after
    `keras.utils.set_random_seed` on any rank.
    """
    drawn = random.SystemRandom().getrandbits(31)
    mine = [drawn, has_random_seed(), _states()]
    seeds, are_set, states = zip(*collective.exchange("seeds", mine), strict=True)
    seed: int = seeds[0]
    if any(are_set):
        return seed
    of_python, of_numpy, of_keras = (
        any(state != given[0] for state in given) for given in zip(*states, strict=True)
    )
    # Keras's first: creating its generator draws from Python's.
    if of_keras:
        set_global_seed_state([seed, 0])
    if of_python:
        random.seed(seed)
    if of_numpy:
        np.random.seed(seed)
    return seed


def _states() -> list[int]:
    """Return checksums of the states of Python's, NumPy's and Keras's generators."""
    states = (random.getstate(), np.random.get_state(), global_seed_state())
    return [zlib.crc32(pickle.dumps(state)) for state in states]
