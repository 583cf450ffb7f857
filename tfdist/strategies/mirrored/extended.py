"""The mechanism of strategies with several devices in each process."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.collectives.base import name_in_graph
from tfdist.collectives.replica import ReplicaCollective
from tfdist.compat import mirrored as compat
from tfdist.gradients import GradientReducer
from tfdist.strategies.mirrored.keras_hooks import MirroredKerasHooks
from tfdist.training.kept_parts import together, with_own_part
from tfdist.training.pipeline import shard_plain
from tfdist.training.step_hooks import StepHooks


class MirroredReplicasExtended(compat.MirroredExtended):  # type: ignore[misc]
    """TensorFlow's mirrored variables, and a `Collective` that joins all devices.

    TensorFlow's own replicas meet to update variables, which is not possible in
    branches of a graph. These do not: each updates its own copy, with gradients that
    are the same bits on all.

    Args:
        strategy: The public strategy.
        collective: How the processes talk.
        reducer: Makes what sums gradients over ranks.
        devices: The full names of the devices of this process, at least two; every
            process has as many.
        cross_device_ops: What sums values over the devices of a process that is alone;
            see `tf.distribute.MirroredStrategy`. Default None: collective ops.
    """

    def __init__(
        self,
        strategy: Any,
        collective: Collective,
        reducer: Callable[[Collective], GradientReducer],
        devices: Sequence[str],
        cross_device_ops: Any = None,
    ) -> None:
        self.collective = collective
        replicas = [
            ReplicaCollective(
                collective, number, devices, meets=cross_device_ops is not None
            )
            for number in range(len(devices))
        ]
        self._replicas = replicas
        self._process_hooks = MirroredKerasHooks(
            collective, replicas, reducer, strategy
        )
        if collective.size > 1:
            # TensorFlow's collectives would look for these devices in all processes.
            cross_device_ops = tf.distribute.ReductionToOneDevice()
        super().__init__(strategy, list(devices), cross_device_ops)

    @property
    def keras_hooks(self) -> StepHooks:
        """The answers of the replica in which this is asked, or of the process."""
        replica = tf.distribute.get_replica_context()
        if replica is None or replica.strategy is not self._container_strategy():
            return self._process_hooks
        number: int = replica._replica_id
        return self._process_hooks.replicas[number]

    @property
    def should_checkpoint(self) -> bool:
        """The chief alone writes files."""
        return self.collective.rank == 0

    @property
    def should_save_summary(self) -> bool:
        """The chief alone writes files."""
        return self.collective.rank == 0

    @property
    def _num_replicas_in_sync(self) -> int:
        """All replicas; 1 in a Keras step, which then leaves the losses unscaled."""
        return 1 if self.keras_hooks.in_step else self._replicas[0].size

    def step(
        self, run: Callable[..., Any], fn: Callable[..., Any], args: Sequence[Any]
    ) -> Any:
        """Run a step of Keras; see `MirroredKerasHooks.run_step`.

        Args:
            run: `tf.distribute.Strategy.run`.
            fn: The step.
            args: Its arguments, first the batch.
        """
        del run
        rest = tuple(args[1:])
        return self._process_hooks.run_step(lambda data: fn(data, *rest), args[0])

    def start_equal(self) -> None:
        """Give the variables made since the last time rank 0's values, on all ranks."""
        self._process_hooks.created.start_equal()

    def _use_merge_call(self) -> bool:
        """Replicas need no meeting; what happens outside of them is TensorFlow's."""
        is_outside = tf.distribute.in_cross_replica_context()
        return bool(is_outside) and not self._process_hooks.are_reduced

    def _in_multi_worker_mode(self) -> bool:
        """Keras takes no way of its own for several workers."""
        return False

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: Any, primary_var: Any, **kwargs: Any
    ) -> Any:
        if replica_id == 0 or not compat.is_building():
            return super()._get_variable_creator_initial_value(
                replica_id, device, primary_var, **kwargs
            )
        # TensorFlow cannot take the first copy's value out of the graph.
        return lambda: tf.zeros(primary_var.shape, primary_var.dtype)

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        variable = super()._create_variable(next_creator, **kwargs)
        self._process_hooks.created.add(variable)
        if compat.is_building():
            self._process_hooks.unequal.append(weakref.ref(variable))
        return variable

    def _replica_ctx_all_reduce(
        self, reduce_op: Any, value: Any, options: Any = None
    ) -> Any:
        del options
        replica = tf.distribute.get_replica_context()
        flat = tf.nest.flatten(value)
        reduction = reduce_op.name.lower()
        reduced = self._replicas[replica._replica_id].all_reduce(
            flat, reduction, name=name_in_graph(f"replica/{reduction}")
        )
        return tf.nest.pack_sequence_as(value, reduced)

    def _reduce_to(
        self, reduce_op: Any, value: Any, destinations: Any, options: Any
    ) -> Any:
        if self.collective.size == 1:
            return super()._reduce_to(reduce_op, value, destinations, options)
        here = super()._reduce_to(
            tf.distribute.ReduceOp.SUM, value, destinations, options
        )
        total = self.collective.all_reduce([here], name=name_in_graph("reduce/sum"))[0]
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            total /= tf.cast(self._replicas[0].size, total.dtype)
        return total

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: Any, options: Any
    ) -> Any:
        here = super()._gather_to_implementation(value, destinations, axis, options)
        if self.collective.size == 1:
            return here
        here = self._local_results(here)[0]
        dimensions = list(range(here.shape.rank))
        dimensions[0], dimensions[axis] = dimensions[axis], dimensions[0]
        rows = self.collective.all_gather(
            tf.transpose(here, dimensions), name=name_in_graph("gather")
        )
        return tf.transpose(rows, dimensions)

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if self.collective.size > 1:
            dataset = shard_plain(dataset, self.collective)
        distributed = compat.distribute(
            dataset, self._container_strategy(), self, options
        )
        return with_own_part(distributed, lambda: dataset)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        context = tf.distribute.InputContext(
            num_input_pipelines=self.collective.size,
            input_pipeline_id=self.collective.rank,
            num_replicas_in_sync=self._replicas[0].size,
        )
        made = []

        def make(context: Any) -> Any:
            made.append(dataset_fn(context))
            return made[0]

        distributed = compat.distribute_from_function(
            make, context, self._container_strategy(), self, options
        )
        count = len(self._replicas)
        return with_own_part(distributed, lambda: together(made[0], count))

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        values = [
            value_fn(
                tf.distribute.experimental.ValueContext(replica.rank, replica.size)
            )
            for replica in self._replicas
        ]
        return compat.by_replica(values)

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return int(self._replicas[replica_id].rank)

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return int(replica_id_in_sync_group) % len(self._replicas)
