"""A model's variables over ranks: equal at the start, and kept so."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.compat.keras.learning_rates import variables_of
from tfdist.compat.mirrored import assign_here, value_here, values_here
from tfdist.gradients import plan_buckets
from tfdist.training.step import Step, state_of_layers

# What travels at once takes its size twice over in memory.
_BROADCAST_BYTES = 8 * 2**20


def start_equal(trainer: Any, collective: Collective, root_rank: int = 0) -> None:
    """Give every rank one rank's variables of a model.

    Weights, moving statistics, seed states, metrics and the optimizer's variables.

    Args:
        trainer: The model; built, as is its optimizer.
        collective: How the ranks talk.
        root_rank: The rank whose variables they get. Default 0.

    Raises:
        RuntimeError: If the ranks have different variables, or name different ranks.
    """
    variables = [
        variable
        for variable in variables_of(trainer)
        # Each rank's are its part of a sum that no rank has alone.
        if "gradient_accumulator" not in variable.path
    ]
    # Names of models count those made so far, of which the chief may have more.
    broadcast_equal(variables, "the model", collective, root_rank)


def broadcast_equal(
    variables: list[Any], where: str, collective: Collective, root_rank: int = 0
) -> None:
    """Give every rank one rank's values.

    Args:
        variables: Of TensorFlow or of Keras, in the same order on every rank.
        where: What holds them, for errors.
        collective: How the ranks talk.
        root_rank: The rank whose values they get. Default 0.

    Raises:
        RuntimeError: If the ranks have different variables, or name different ranks.
    """
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
                variable.assign(value)


def average_state(variables: list[Any], collective: Collective) -> None:
    """Give every rank the mean over ranks of what layers keep beside their weights.

    Args:
        variables: Float variables of Keras, in the same order on every rank.
        collective: How the ranks talk.
    """
    values = [tf.reduce_mean(values_here(variable), 0) for variable in variables]
    means = collective.all_reduce(values, "mean", name="state of the model")
    for variable, mean in zip(variables, means, strict=True):
        variable.assign(mean)


@contextmanager
def put_back(step: Step) -> Iterator[None]:
    """Undo what a step on a stand-in did to metrics and statistics.

    Integers of layers, such as counters of steps and the states of seeds, move on all
    the same, because they move on the other ranks.

    Args:
        step: A step that may work on a stand-in. What it gets from other ranks stays.

    Yields:
        Nothing; the block is the step.
    """
    trainer, (is_stand_in,) = step.trainer, step.shard.stand_in
    variables = {
        id(v): v for v in [*trainer.metrics_variables, *state_of_layers(trainer)]
    }
    before = {key: tf.identity(v.value) for key, v in variables.items()}
    yield
    for key, variable in variables.items():
        if key in step.assigned:
            value = tf.where(is_stand_in, before[key], variable.value)
            assign_here(variable, value)


def _check_equal_specs(
    variables: list[Any], where: str, collective: Collective, root_rank: int
) -> None:
    """Refuse models that differ between ranks, before anything of them is sent."""
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
        for mine, other in _pairs(specs, theirs):
            # Paths count the layers made so far, of which the chief may have more.
            if mine is None or other is None or mine[:2] != other[:2]:
                raise RuntimeError(
                    f"The ranks have different variables in {where}. Received: "
                    f"{_describe(mine)} on rank {collective.rank}, {_describe(other)} "
                    f"on rank {rank}. Make the same ones on every rank, and others "
                    "outside of strategy.scope()."
                )


def _pairs(one: list[Any], other: list[Any]) -> list[tuple[Any, Any]]:
    """Pair two lists, the shorter one filled up with None."""
    length = max(len(one), len(other))
    one = one + [None] * (length - len(one))
    other = other + [None] * (length - len(other))
    return list(zip(one, other, strict=True))


def _describe(spec: list[Any] | None) -> str:
    """Name a variable in an error."""
    return "none" if spec is None else f"{spec[2]} {tuple(spec[0])} {spec[1]}"


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
        """The number of variables that wait for equal values."""
        return len(self._created)

    def add(self, variable: Any) -> None:
        """Note a variable that was made."""
        self._created.append(weakref.ref(variable))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def start_equal(self) -> None:
        """Give those made since the last time rank 0's values, on all ranks."""
        if self._collective.size == 1 or not self._created:
            return
        # Collect garbage, so that all ranks track the same variables.
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
