"""What a strategy of several devices in each process does inside of Keras."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.compat.keras.learning_rates import variables_of
from tfdist.compat.keras.metrics import noted_results
from tfdist.compat.mirrored import copies_here
from tfdist.compat.tensorflow import number_of
from tfdist.data.sharding import Shard, cut_rows, shard_of, split
from tfdist.gradients import GradientReducer
from tfdist.strategies.mirrored.logs import Noted, logs_here
from tfdist.strategies.mirrored.replica_context import StepReplicaContext
from tfdist.training.hooks import StrategyKerasHooks
from tfdist.training.input import Feed
from tfdist.training.predictions import gather_rows, join_rows
from tfdist.training.step import Step
from tfdist.training.step_hooks import StepHooks


class ReplicaHooks(StepHooks):
    """What one of the devices answers within steps.

    Args:
        collective: How the replicas of all processes talk.
        reducer: How gradients travel.
        process: The hooks of the process, which know what is the same for all of them.
    """

    def __init__(
        self, collective: Collective, reducer: GradientReducer, process: StepHooks
    ) -> None:
        super().__init__(collective, reducer)
        self._apart = process._apart
        self._agreed = process._agreed

    @property
    def is_alone(self) -> bool:
        """Whether there is no other replica."""
        return False


class MirroredKerasHooks(StrategyKerasHooks):
    """The answers to `tfdist.compat.keras.KerasHooks` of all devices of a process.

    A step runs once on each device, on its part of the rows of this process. What lies
    between the steps is the affair of the processes.

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
        super().__init__(collective, reducer(collective))
        self._strategy = strategy
        # Variables made in a graph, whose copies begin as zeros beside the first.
        self.unequal: list[weakref.ref[Any]] = []
        self._feed = Feed(collective, len(replicas))
        self.replicas = [
            ReplicaHooks(replica, reducer(replica), self) for replica in replicas
        ]

    @property
    def is_alone(self) -> bool:
        """Whether there is no other replica."""
        return False

    @property
    def has_peers(self) -> bool:
        """Whether other processes run the same calls of Keras, on their own rows."""
        return self._collective.size > 1

    def synchronize(self, trainer: Any) -> None:
        """Give all copies, on all ranks, the values that a `fit` is to start from."""
        _make_equal(v for ref in self.unequal if (v := ref()) is not None)
        self.unequal.clear()
        super().synchronize(trainer)

    def metrics_result(
        self, trainer: Any, result: Callable[[Any], Any], logs: Any
    ) -> Any:
        """Call `result(logs)` with the metric states of all ranks.

        A step that finds the end of the data may have been counted by some devices, and
        have moved the seeds of some.
        """
        of_metrics = {id(variable) for variable in trainer.metrics_variables}
        _make_equal(
            variable
            for variable in variables_of(trainer)
            if tf.as_dtype(variable.dtype).is_integer and id(variable) not in of_metrics
        )
        return super().metrics_result(trainer, result, logs)

    def run_step(self, call: Callable[[Any], Any], data: Any) -> Any:
        """Run a step of the call of Keras that is going on, on each device.

        Args:
            call: Runs the step on a batch, within a replica.
            data: A `Shard`; or a batch of this process's own (`train_on_batch`).

        Returns:
            What the step returns; for predictions, those of all ranks.

        Raises:
            RuntimeError: If no call of Keras is going on.
        """
        trainer, is_joint = self._called()
        shard = shard_of(data, is_joint=is_joint)
        known = self.created.count
        if not is_joint:
            # Nobody takes part but this process, for which one device is enough.
            ((step, outputs),), noted = self._make_steps(
                call, [shard], trainer, is_joint
            )
            if trainer is None:
                return outputs
            return logs_here(trainer, [outputs], [step.share()], noted)
        shards = split(shard, len(self.replicas))
        made, noted = self._make_steps(call, shards, trainer, is_joint)
        outputs = [each for _, each in made]
        if trainer is None:
            own = [
                cut_rows(rows, 0, part.own)
                for rows, part in zip(outputs, shards, strict=True)
            ]
            return gather_rows(join_rows(own), self._collective)
        self.created.start_equal_since(known)
        shares = [step.share() for step, _ in made]
        logs = logs_here(trainer, outputs, shares, noted)
        self._metrics.note_share(trainer, tf.add_n(shares), logs)
        return logs

    def _make_steps(
        self,
        call: Callable[[Any], Any],
        shards: Sequence[Shard],
        trainer: Any,
        is_joint: bool,
    ) -> tuple[list[tuple[Step, Any]], Noted]:
        """Make a step on each device for which there is a shard."""
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


def _make_equal(variables: Iterable[Any]) -> None:
    """Give all copies of variables the value of the first device's."""
    for variable in variables:
        first, *others = copies_here(variable)
        for copy in others:
            copy.assign(first)
