"""The implementation of strategies with several devices per process."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import Collective, check_options, name_in_graph
from tfdist.collectives.replica import ReplicaCollective
from tfdist.collectives.tensorflow import choose_transport
from tfdist.compat import mirrored as compat
from tfdist.compat.keras.positions import drawing_as_here
from tfdist.compat.patching import holding
from tfdist.compat.tensorflow import UpdateContext
from tfdist.devices import cards
from tfdist.gradients.reducer import GradientReducer
from tfdist.strategies.base import CollectiveExtended
from tfdist.strategies.mirrored.hooks import MirroredKerasHooks, SimulatedReplicaContext
from tfdist.training.hooks import ReplicaHooks
from tfdist.training.input import shard_plain, together, with_own_part

# The `tf.distribute.InputOptions` that TensorFlow's own iterators honour.
_INPUT_OPTIONS = (
    "experimental_fetch_to_device",
    "experimental_per_replica_buffer_size",
)


class MirroredReplicasExtended(CollectiveExtended, compat.MirroredExtended):
    """TensorFlow's mirrored variables, and a `Collective` of all devices.

    TensorFlow's own replicas merge to update variables, which is impossible in branches
    of a graph. Here each replica updates its own copy, with bit-identical gradients.
    """

    process_hooks: MirroredKerasHooks

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
                collective,
                number,
                devices,
                meets=cross_device_ops is not None,
                communication=_communication(collective, devices),
            )
            for number in range(len(devices))
        ]
        self._replicas = replicas
        self.process_hooks = MirroredKerasHooks(collective, replicas, reducer, strategy)
        if collective.size > 1:
            # TensorFlow's collectives would expect these devices in all processes.
            cross_device_ops = tf.distribute.ReductionToOneDevice()
        super().__init__(strategy, list(devices), cross_device_ops)

    @property
    def keras_hooks(self) -> ReplicaHooks:
        """The hooks of the current replica, or else of the process."""
        hooks, number = self.process_hooks, self._number_here()
        return hooks if number is None else hooks.replicas[number]

    @property
    def joined(self) -> Collective:
        """The collective of all replicas, as seen from the current one."""
        return self._replicas[self._number_here() or 0]

    def _number_here(self) -> int | None:
        """Return the index of the device whose replica runs this code, if any."""
        replica = tf.distribute.get_replica_context()
        if replica is None or replica.strategy is not self._container_strategy():
            return None
        return replica._replica_id

    @contextmanager
    def standing_in(self, hooks: Any, collective: Any) -> Iterator[None]:
        """Let other hooks, of a simulated rank, take the place of all devices'."""
        beside = holding(self, "_replicas", [collective])
        with super().standing_in(hooks, collective), beside:
            yield

    def replica_of(self, rank: int, hooks: Any) -> tf.distribute.ReplicaContext:
        """Return the context of a simulated rank, which uses the first device."""
        hooks.replicas = [hooks]
        return SimulatedReplicaContext(self._container_strategy(), 0, hooks)

    def step(
        self, run: Callable[..., Any], fn: Callable[..., Any], args: Sequence[Any]
    ) -> Any:
        """Run a Keras step; its hooks enter the replicas themselves."""
        return super().step(lambda fn, args: fn(*args), fn, args)

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(fn, tf.types.experimental.PolymorphicFunction):
            # TensorFlow makes it one function of all replicas.
            return super()._call_for_each_replica(fn, args, kwargs)
        in_thread = drawing_as_here(fn)

        @tf.autograph.experimental.do_not_convert
        def in_order(*args: Any, **kwargs: Any) -> Any:
            with compat.own_order(self._container_strategy()):
                return in_thread(*args, **kwargs)

        return super()._call_for_each_replica(in_order, args, kwargs)

    def _use_merge_call(self) -> bool:
        """Return whether TensorFlow may merge replicas: only outside of them."""
        is_outside = tf.distribute.in_cross_replica_context()
        return is_outside and not self.process_hooks.are_reduced

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: Any, primary_var: Any, **kwargs: Any
    ) -> Any:
        if replica_id == 0 or not compat.is_building():
            return super()._get_variable_creator_initial_value(
                replica_id, device, primary_var, **kwargs
            )
        # TensorFlow cannot take the first copy's value out of a graph.
        return lambda: tf.zeros(primary_var.shape, primary_var.dtype)

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        variable = super()._create_variable(next_creator, **kwargs)
        self.process_hooks.created.add(variable)
        if compat.is_building():
            self.process_hooks.unequal.append(weakref.ref(variable))
        return variable

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
        return self._gather_over_processes(self._local_results(here)[0], axis)

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        check_options(options, *_INPUT_OPTIONS)
        if self.collective.size > 1:
            dataset = shard_plain(dataset, self.collective)
        distributed = compat.distribute(
            dataset, self._container_strategy(), self, options
        )
        return with_own_part(distributed, lambda: dataset)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        check_options(options, *_INPUT_OPTIONS)
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
        return self._replicas[replica_id].rank

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return int(replica_id_in_sync_group) % len(self._replicas)


class CentralStorageExtended(MirroredReplicasExtended):
    """Weights and the optimizer's variables of each weight on one device.

    Variables that layers assign, such as moving statistics, have a copy on every
    device, as under a mirrored strategy.
    """

    def __init__(self, parameter_device: str, *args: Any) -> None:
        self._parameter_device = parameter_device
        super().__init__(*args)
        for hooks in (self.process_hooks, *self.process_hooks.replicas):
            hooks.updates_once = True

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The device of the weights."""
        return (self._parameter_device,)

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        weight = kwargs.get("colocate_with")
        is_of_weight = isinstance(weight, tf.Variable) and not _has_copies(weight)
        is_weight = kwargs.get("trainable") is not False and (
            kwargs.get("synchronization") != tf.VariableSynchronization.ON_READ
        )
        if not (is_of_weight or is_weight):
            return super()._create_variable(next_creator, **kwargs)
        kwargs.pop("colocate_with", None)
        with tf.device(self._parameter_device):
            variable = next_creator(**kwargs)
        self.process_hooks.created.add(variable)
        return variable

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        """Accept weights in addition to mirrored variables."""
        if _has_copies(colocate_with_variable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        if _has_copies(var):
            return super()._update(var, fn, args, kwargs, group)
        # Other variables, such as a learning rate, are read from the first device.
        with tf.device(self._parameter_device), UpdateContext(0):
            result = fn(var, *args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)


def _communication(collective: Collective, devices: Sequence[str]) -> str:
    """Return the transport between the devices of all processes."""
    if not all("GPU" in device for device in devices):
        # A ring, in the order that NCCL needs.
        return "nccl"
    if collective.size > 1:
        return getattr(collective, "communication", "ring")
    return choose_transport([cards()])[0]


def _has_copies(variable: Any) -> bool:
    """Return whether a variable has a copy on every device."""
    return isinstance(variable, tf.distribute.DistributedValues)
