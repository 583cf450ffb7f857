"""The implementation of strategies with one replica per process."""

from typing import Any

import tensorflow as tf

from tfdist.collectives.base import Collective, check_options, name_in_graph
from tfdist.compat.tensorflow import StrategyExtended, UpdateContext, local_devices
from tfdist.data.sharding import mark
from tfdist.gradients.reducer import GradientReducer
from tfdist.sharding.owners import WeightOwners
from tfdist.strategies.base import CollectiveExtended
from tfdist.training.hooks import StrategyKerasHooks
from tfdist.training.input import shard_plain
from tfdist.training.step import WeighingReplicaContext


class ProcessReplicaExtended(CollectiveExtended, StrategyExtended):
    """Plain variables on one device, and a `Collective` of all processes."""

    # Of a strategy that shards optimizers.
    owners: WeightOwners | None = None

    def __init__(
        self,
        strategy: Any,
        collective: Collective,
        reducer: GradientReducer,
        device: str | None = None,
        variable_device: str | None = None,
        hooks: StrategyKerasHooks | None = None,
    ) -> None:
        super().__init__(strategy)
        self.collective = collective
        self.process_hooks = hooks or StrategyKerasHooks(collective, reducer)
        self._device = device or local_devices()[0]
        self._variable_device = variable_device or self._device

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device of this process's replica."""
        return (self._device,)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The device of the variables."""
        return (self._variable_device,)

    def non_slot_devices(self, var_list: Any) -> tuple[str, ...]:
        """Return the device of optimizer variables that belong to no weight."""
        return (self._device,)

    def value_container(self, value: Any) -> Any:
        """Return the variable itself, which has no container."""
        return value

    def _use_merge_call(self) -> bool:
        """False: there are no replicas to merge."""
        return False

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        colocate_with = kwargs.pop("colocate_with", None)
        if colocate_with is not None and hasattr(colocate_with, "device"):
            device = colocate_with.device
        else:
            device = self._variable_device
        with tf.device(device):
            variable = next_creator(**kwargs)
        self.process_hooks.created.add(variable)
        return variable

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        """Accept any variable: all are on this process's device."""

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        hooks = self.process_hooks
        context = WeighingReplicaContext(self._container_strategy(), hooks.rank, hooks)
        with tf.device(self._device), context:
            return fn(*args, **kwargs)

    def _reduce_to(
        self, reduce_op: Any, value: Any, destinations: Any, options: Any
    ) -> Any:
        reduction = reduce_op.name.lower()
        name = name_in_graph(f"reduce/{reduction}")
        return self.collective.all_reduce([value], reduction, name=name)[0]

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: Any, options: Any
    ) -> Any:
        return self._gather_over_processes(tf.convert_to_tensor(value), axis)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        return tensor

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        check_options(options, "experimental_fetch_to_device")
        if self.collective.size == 1:
            return dataset
        return mark(shard_plain(dataset, self.collective))

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        # A process has one replica.
        check_options(
            options, "experimental_fetch_to_device", "experimental_replication_mode"
        )
        size = self.collective.size
        context = tf.distribute.InputContext(
            num_input_pipelines=size,
            input_pipeline_id=self.collective.rank,
            num_replicas_in_sync=size,
        )
        dataset = dataset_fn(context)
        return dataset if size == 1 else mark(dataset)

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        context = tf.distribute.experimental.ValueContext(
            self.collective.rank, self.collective.size
        )
        return value_fn(context)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        return self._update_non_slot(var, fn, (var, *args), kwargs, group)

    def _update_non_slot(
        self, colocate_with: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        with tf.device(self._device), UpdateContext(self._device):
            result = fn(*args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)

    def _replica_ctx_update(
        self,
        var: Any,
        fn: Any,
        args: Any = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        return self._update(var, fn, args, kwargs or {}, group)

    def _local_results(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> int:
        return 0
