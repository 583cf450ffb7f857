"""Base classes of strategies with one or several replicas per process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.base import Collective, check_options, name_in_graph
from tfdist.compat.keras.hooks import hooks_of
from tfdist.compat.keras.install import install
from tfdist.compat.patching import holding
from tfdist.compat.random_pipelines import draw_alike, drawing_apart
from tfdist.compat.sparse_updates import sum_segments_in_order
from tfdist.data.sharding import Shard
from tfdist.first_step.check import FirstStepCheck, check_choice
from tfdist.observing import current_observer
from tfdist.training.hooks import StrategyKerasHooks
from tfdist.training.state import agree_on_seeds
from tfdist.training.step import WeighingReplicaContext


class StepRunner(tf.distribute.Strategy):
    """A strategy that runs Keras steps through the hooks of `CollectiveExtended`."""

    @property
    def collective(self) -> Collective:
        """The collective of the processes."""
        return self.extended.collective

    @property
    def can_compile(self) -> bool:
        """Whether XLA compiles steps by default, as Keras does on GPUs."""
        extended = self.extended
        has_one_device = (
            len({*extended.worker_devices, *extended.parameter_devices}) == 1
        )
        return has_one_device and extended.process_hooks.can_compile

    def _start(
        self, extended: "CollectiveExtended", check_first_step: str = "warn"
    ) -> None:
        """Initialize the strategy with its implementation."""
        check_choice(check_first_step)
        tf.distribute.Strategy.__init__(self, extended)
        if extended.joined.size > 1 and check_first_step != "off":
            extended.process_hooks.check_by(FirstStepCheck(check_first_step, extended))
        install(is_alone=extended.collective.size == 1)
        if hooks_of(self) is not None:
            sum_segments_in_order()
        if extended.collective.size > 1:
            draw_alike(agree_on_seeds(extended.collective))

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any = None
    ) -> Any:
        """Distribute a function's datasets; see `tf.distribute.Strategy`."""
        # They are this process's own, and may be in another order elsewhere.
        with drawing_apart():
            return super().distribute_datasets_from_function(dataset_fn, options)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Call a function in each replica; see `tf.distribute.Strategy.run`."""
        run = super().run
        hooks = self.extended.process_hooks
        if hooks.is_called or any(isinstance(arg, Shard) for arg in args):
            return self.extended.step(
                lambda fn, args: run(fn, args, kwargs, options), fn, args
            )
        hooks.created.start_equal()
        with hooks.looping(args):
            return run(fn, args, kwargs, options)


class CollectiveExtended(tf.distribute.StrategyExtended):
    """A strategy implementation whose processes share a `Collective`."""

    collective: Collective
    # The hooks of this process; within a replica, `keras_hooks` are the replica's.
    process_hooks: StrategyKerasHooks

    @property
    def joined(self) -> Collective:
        """The collective of all replicas; within a replica, as seen from it."""
        return self.collective

    @contextmanager
    def standing_in(self, hooks: Any, collective: Any) -> Iterator[None]:
        """Let other hooks, of a simulated rank, take the place of the process's."""
        beside = holding(self, "collective", collective)
        with holding(self, "process_hooks", hooks), beside:
            yield

    def replica_of(self, rank: int, hooks: Any) -> tf.distribute.ReplicaContext:
        """Return the replica context of a simulated rank."""
        return WeighingReplicaContext(self._container_strategy(), rank, hooks)

    @property
    def keras_hooks(self) -> Any:
        """The hooks of the current replica, or else of the process."""
        return self.process_hooks

    @property
    def should_checkpoint(self) -> bool:
        """True on the chief, which alone writes files."""
        return self.collective.rank == 0

    @property
    def should_save_summary(self) -> bool:
        """True on the chief, which alone writes files."""
        return self.collective.rank == 0

    @property
    def _num_replicas_in_sync(self) -> int:
        """All replicas; 1 in a Keras step, so that Keras does not scale losses."""
        if self.keras_hooks.step is not None:
            return 1
        return current_observer().replicas(self.joined.size)

    def step(
        self, run: Callable[..., Any], fn: Callable[..., Any], args: Sequence[Any]
    ) -> Any:
        """Run a Keras step, whose first argument is the batch, on each device."""
        data, *rest = args
        return self.process_hooks.run_step(lambda rows: run(fn, (rows, *rest)), data)

    def _in_multi_worker_mode(self) -> bool:
        """False: Keras must not use its own code paths for several workers."""
        return False

    def reduce_to(
        self, reduce_op: Any, value: Any, destinations: Any, options: Any = None
    ) -> Any:
        """Reduce a value over replicas; see `tf.distribute.StrategyExtended`."""
        check_options(options)
        return super().reduce_to(reduce_op, value, destinations)

    def batch_reduce_to(
        self, reduce_op: Any, value_destination_pairs: Any, options: Any = None
    ) -> Any:
        """Reduce values over replicas; see `tf.distribute.StrategyExtended`."""
        check_options(options)
        return super().batch_reduce_to(reduce_op, value_destination_pairs)

    def _gather_to(
        self, value: Any, destinations: Any, axis: Any, options: Any = None
    ) -> Any:
        check_options(options)
        return super()._gather_to(value, destinations, axis)

    def _replica_ctx_all_reduce(
        self, reduce_op: Any, value: Any, options: Any = None
    ) -> Any:
        check_options(options)
        flat = tf.nest.flatten(value)
        reduction = reduce_op.name.lower()
        reduced = self.joined.all_reduce(
            flat, reduction, name=name_in_graph(f"replica/{reduction}")
        )
        return tf.nest.pack_sequence_as(value, reduced)

    def _gather_over_processes(self, value: Any, axis: Any) -> Any:
        """Concatenate the values of all processes along an axis."""
        value = keras.ops.swapaxes(value, 0, axis)
        rows = self.collective.all_gather(value, name=name_in_graph("gather"))
        return keras.ops.swapaxes(rows, 0, axis)
