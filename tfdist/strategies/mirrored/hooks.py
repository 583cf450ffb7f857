"""The hooks of a strategy of several devices in each process."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.compat.keras.losses_and_metrics import noted_results
from tfdist.compat.mirrored import MirroredReplicaContext, copies_here, value_here
from tfdist.compat.tensorflow import number_of
from tfdist.data.sharding import Shard, split
from tfdist.gradients import GradientReducer
from tfdist.training.hooks import Made, Noted, ReplicaHooks, StrategyKerasHooks
from tfdist.training.step import WeighingReplicaContext


class MirroredKerasHooks(StrategyKerasHooks):
    """The answers to `tfdist.compat.keras.KerasHooks` of all devices of a process.

    A step runs once on each device, on its part of the rows of this process. What lies
    between the steps is done once for each process.

    Args:
        collective: How the processes talk.
        replicas: How the replicas of all processes talk, for each device of this one.
        reducer: Makes what sums gradients over ranks.
        strategy: The public strategy.
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
        # Variables made in a graph, of which all copies but the first begin as zeros.
        self.unequal: list[weakref.ref[Any]] = []
        self.replicas = [ReplicaHooks(each, reducer(each)) for each in replicas]
        for replica in self.replicas:
            # The state of layers is the same for all devices of this process.
            replica._apart, replica._agreed = self._apart, self._agreed

    @property
    def is_alone(self) -> bool:
        """Whether there is no other replica."""
        return False

    def synchronize(self, trainer: Any) -> None:
        """Give all copies, on all ranks, the values that a `fit` is to start from."""
        _make_equal(v for ref in self.unequal if (v := ref()) is not None)
        self.unequal.clear()
        super().synchronize(trainer)

    def epoch_ended(self, trainer: Any) -> None:
        """Make the state of layers equal, and integers such as those of seeds.

        A step that finds the end of the data may have been counted by some devices, and
        have moved the seeds of some.
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
        """Make a step on each device; one device is enough for a rank's own step."""
        shards = split(shard, len(self.replicas)) if is_joint else [shard]
        made: list[Any] = [None] * len(self.replicas)
        noted: Noted = []

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
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
        """Join what the devices returned."""
        shares = [step.share() for step, _ in made]
        return logs_here(trainer, [outputs for _, outputs in made], shares, noted)


def _make_equal(variables: Iterable[Any]) -> None:
    """Give all copies of variables the value of the first device's."""
    for variable in variables:
        first, *others = copies_here(variable)
        for copy in others:
            copy.assign(first)


def logs_here(
    trainer: Any, outputs: Sequence[Any], shares: Sequence[Any], noted: Noted
) -> Any:
    """Join what a step returned on each device of this process.

    A metric is computed from what all devices have counted. Any other number is taken
    for a mean over the rows of a device.

    Args:
        trainer: The model.
        outputs: What the step returned, by device.
        shares: The part of the global batch that each had, float64 scalars.
        noted: What metrics returned on the first device.

    Returns:
        The structure of the first output.
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
        if isinstance(leaves[0], tf.Tensor) and leaves[0].dtype.is_floating:
            return _mean(leaves, shares)
        return leaves[0]

    return tf.nest.map_structure(join, *outputs)


def _mean(values: Sequence[Any], shares: Sequence[Any]) -> Any:
    """Return the mean of values, each of which counts by its share."""
    dtype = values[0].dtype
    weighed = [
        tf.math.multiply_no_nan(value, tf.cast(share, dtype))
        for value, share in zip(values, shares, strict=True)
    ]
    return tf.math.divide_no_nan(tf.add_n(weighed), tf.cast(tf.add_n(shares), dtype))


class StepReplicaContext(WeighingReplicaContext, MirroredReplicaContext):  # type: ignore[misc]
    """A replica of TensorFlow's, whose all-reduce weighs each by its rows."""
