"""Keras hooks of strategies with several devices per process."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.base import Collective
from tfdist.compat.keras.hooks import GradientPlan
from tfdist.compat.keras.layers import is_normalized
from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.compat.keras.losses_and_metrics import Noted, noted_results
from tfdist.compat.mirrored import (
    MirroredReplicaContext,
    copies_here,
    is_copied,
    value_here,
)
from tfdist.compat.tensorflow import number_of
from tfdist.data.sharding import Shard, split
from tfdist.gradients.reducer import GradientReducer, weigh
from tfdist.training.hooks import Made, ReplicaHooks, StrategyKerasHooks
from tfdist.training.state import NotedState
from tfdist.training.step import WeighingReplicaContext, state_of_layers


class MirroredKerasHooks(StrategyKerasHooks):
    """The `KerasHooks` of all devices of a process.

    A step runs on each device, on its part of this process's rows. Everything between
    steps is done once per process.
    """

    def __init__(
        self,
        collective: Collective,
        replicas: Sequence[Collective],
        reducer: Callable[[Collective], GradientReducer],
        strategy: Any,
    ) -> None:
        super().__init__(collective, reducer(collective), len(replicas))
        self._strategy = strategy
        # Variables created in a graph: all copies but the first start as zeros.
        self.unequal: list[weakref.ref[Any]] = []
        self.replicas = [
            DeviceHooks(each, reducer(each), self._noted, strategy) for each in replicas
        ]

    @property
    def is_alone(self) -> bool:
        """False: a process has several replicas."""
        return False

    @contextmanager
    def looping(self, args: Any) -> Iterator[None]:
        """Mark a call of `Strategy.run` in a custom loop, on all devices."""
        with ExitStack() as stack:
            for replica in self.replicas:
                stack.enter_context(replica.looping(args))
            yield

    def synchronize(self, trainer: Any) -> None:
        """Make all copies equal on all ranks for the start of a `fit`."""
        _make_equal(v for ref in self.unequal if (v := ref()) is not None)
        self.unequal.clear()
        super().synchronize(trainer)

    def epoch_ended(self, trainer: Any) -> None:
        """Make layer state equal, and integers, such as seed states.

        A step that meets the end of the data may have advanced integers on some devices
        only.
        """
        variables = [
            *trainer.variables,
            *(v for optimizer in optimizers_of(trainer) for v in optimizer.variables),
        ]
        of_metrics = {id(variable) for variable in trainer.metrics_variables}
        _make_equal(
            variable
            for variable in variables
            if tf.as_dtype(variable.dtype).is_integer and id(variable) not in of_metrics
        )
        super().epoch_ended(trainer)

    def _make_steps(
        self, call: Callable[[Any], Any], shard: Shard, trainer: Any, *, is_joint: bool
    ) -> tuple[Made, Noted]:
        """Run a step on each device; on one device if only this rank runs it."""
        shards = split(shard, len(self.replicas)) if is_joint else [shard]
        made: list[Any] = [None] * len(self.replicas)
        noted: Noted = []

        @tf.autograph.experimental.do_not_convert
        def in_replica() -> None:
            rank = number_of(tf.distribute.get_replica_context())
            number = rank % len(self.replicas)
            if number >= len(shards):
                return
            hooks = self.replicas[number]

            def call_noting(batch: Any) -> Any:
                if trainer is None or number > 0:
                    return call(batch)
                with noted_results(trainer) as results:
                    outputs = call(batch)
                noted.extend(results)
                return outputs

            with StepReplicaContext(self._strategy, rank, hooks):
                made[number] = hooks.make_step(
                    call_noting, shards[number], trainer, is_joint=is_joint
                )

        tf.distribute.Strategy.run(self._strategy, in_replica)
        return made[: len(shards)], noted

    def _join_logs(self, trainer: Any, made: Made, noted: Noted) -> Any:
        """Combine the outputs of this process's devices."""
        shares = [step.share() for step, _ in made]
        return logs_here(trainer, [outputs for _, outputs in made], shares, noted)


class DeviceHooks(ReplicaHooks):
    """The hooks of one device, which changes only its own copies of variables."""

    def __init__(
        self,
        collective: Collective,
        reducer: GradientReducer,
        noted: NotedState,
        strategy: Any,
    ) -> None:
        super().__init__(collective, reducer, noted)
        self._strategy = strategy

    def prepare_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> GradientPlan:
        """Reject variables without copies, then prepare their gradients."""
        if not self.updates_once:
            self._check_copied(variables)
        return super().prepare_gradients(gradients, variables)

    def note_assigned(self, variable: Any, value: Any = None) -> None:
        """Reject layer state without copies, then note that a step assigns it."""
        trainer = None if self.step is None else self.step.trainer
        if trainer is not None and not is_copied(variable, self._strategy):
            weights, state = trainer.trainable_variables, state_of_layers(trainer)
            # Central storage: normalizing a weight again, per device, changes nothing.
            is_safe = self.updates_once and is_normalized(trainer, variable)
            if any(variable is one for one in [*weights, *state]) and not is_safe:
                others = [] if self.updates_once else weights
                self._check_copied([variable, *others, *state])
        super().note_assigned(variable, value)

    def _check_copied(self, variables: Sequence[Any]) -> None:
        """Raise `ValueError` unless each device has its own copy of variables."""
        shared = [v for v in variables if not is_copied(v, self._strategy)]
        if shared:
            paths = {getattr(v, "path", v.name): tuple(v.shape) for v in shared}
            names = [f"{path} {shape}" for path, shape in paths.items()]
            raise ValueError(
                "Each device needs its own copy of a variable that a step changes. "
                f"Received: {'; '.join(names[:3])}, made outside of strategy.scope()"
                " or, with central storage, as weights. Make layers and enable LoRA in "
                "a block `with strategy.scope():`; a step that assigns weights itself "
                "needs MirroredStrategy."
            )


def _make_equal(variables: Iterable[Any]) -> None:
    """Assign the first device's value to all copies of variables."""
    for variable in variables:
        first, *others = copies_here(variable)
        for copy in others:
            copy.assign(first)


def logs_here(
    trainer: Any, outputs: Sequence[Any], shares: Sequence[Any], noted: Noted
) -> Any:
    """Combine the outputs of a step on each device of this process.

    Results of metrics, which `noted` lists, are computed again from the counts of all
    devices. Other floats of a known shape are averaged, weighted by `shares`; the rest
    is that of the last device, which has rows in every batch.
    """
    metrics = {id(value): (metric, name) for value, metric, name in noted}
    results: dict[int, Any] = {}
    mapping = [(v, value_here(v)) for v in trainer.metrics_variables]

    def join(*leaves: Any) -> Any:
        if id(leaves[0]) in metrics:
            metric, name = metrics[id(leaves[0])]
            if id(metric) not in results:
                with keras.StatelessScope(state_mapping=mapping):
                    results[id(metric)] = metric.result()
            result = results[id(metric)]
            return result if name is None else result[name]
        if not isinstance(leaves[0], tf.Tensor) or not leaves[0].dtype.is_floating:
            return leaves[-1]
        shape = leaves[0].shape
        is_one = all(
            leaf.shape.is_fully_defined() and leaf.shape == shape for leaf in leaves
        )
        return _mean(leaves, shares) if is_one else leaves[-1]

    return tf.nest.map_structure(join, *outputs)


def _mean(values: Sequence[Any], shares: Sequence[Any]) -> Any:
    """Return the mean of values, weighted by shares."""
    dtype = values[0].dtype
    weighed = [
        weigh([value], share)[0] for value, share in zip(values, shares, strict=True)
    ]
    return tf.math.divide_no_nan(tf.add_n(weighed), tf.cast(tf.add_n(shares), dtype))


class StepReplicaContext(WeighingReplicaContext, MirroredReplicaContext):
    """TensorFlow's replica context, whose all-reduce weighs replicas by rows."""


class SimulatedReplicaContext(StepReplicaContext):
    """The context of a simulated rank: its own number, the first device's values."""

    @property
    def replica_id_in_sync_group(self) -> int:
        """The number of the simulated rank."""
        return self._hooks.rank
