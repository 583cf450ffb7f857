"""Updates on the servers, applied whole and one at a time from the slots of steps."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import join_slices
from tfdist.compat.dynamic_tables import admitted
from tfdist.compat.keras.sharded import shards_of
from tfdist.compat.keras.sharded_optimizer import apply_arguments
from tfdist.gradients.reducer import weigh
from tfdist.strategies.parameter_server.batch_codec import StepResults
from tfdist.strategies.parameter_server.dispatcher import AHEAD
from tfdist.strategies.parameter_server.job import LONGEST_STALENESS, ServerJob
from tfdist.strategies.parameter_server.step import PureStep


class Update:
    """The update of a model from slots: the optimizer's, and all other variables'.

    It runs on the servers only. Calls come from one thread, so optimizer state is never
    updated concurrently.
    """

    def __init__(self, job: ServerJob, step: PureStep) -> None:
        self.step = step
        self._job = job
        self._functions: dict[tuple[int, ...], Any] = {}
        self._log_reader: Callable[[], Any] | None = None
        self._free: list[list[tf.Variable]] = []

    def __call__(self, groups: Sequence[Sequence[list[tf.Variable]]]) -> None:
        """Apply groups of slots in order, each as one update, weighted by its rows."""
        sizes = tuple(len(group) for group in groups)
        handles = [[[v.handle for v in slot] for slot in group] for group in groups]
        with tf.device(self._job.server_of_state):
            if sizes not in self._functions:
                function = tf.function(self._apply_all, autograph=False)
                self._functions[sizes] = function.get_concrete_function(handles)
            self._functions[sizes](handles)

    def read_logs(self) -> dict[str, Any]:
        """Return metric results over all applied steps, and numbers of the last one."""
        # The results arrive with the call, and need no calls of their own.
        with tf.device(self._job.chief):
            if self._log_reader is None:
                function = tf.function(self._read_logs, autograph=False)
                self._log_reader = function.get_concrete_function()
            results, numbers = self._log_reader()
        arrays = [result.numpy() for result in results]
        plain = [float(array) if array.ndim == 0 else array for array in arrays]
        return self.step.logs.fill(plain, numbers.numpy())

    def take_slot(self) -> list[tf.Variable]:
        """Return the variables of an unused slot."""
        # Without a check first, because several worker threads call this.
        try:
            return self._free.pop()
        except IndexError:
            return self.step.layout.make()

    def give_back(self, slots: Sequence[list[tf.Variable]]) -> None:
        """Release the slots of a piece of work that no worker writes to any more."""
        # While the other updates wait for a slow worker there are many more.
        most = AHEAD * self._job.workers * len(slots)
        self._free += slots[: max(0, most - len(self._free))]

    def _read_logs(self) -> Any:
        step = self.step
        with tf.device(self._job.server_of_state):
            logs = step.logs.metric_results(), step.last_numbers.read_value()
        with tf.device(self._job.chief):
            return tf.nest.map_structure(tf.identity, logs)

    def _apply_all(self, groups: Any) -> None:
        """Trace the updates of groups of slots."""
        last: list[tf.Operation] = []
        for group in groups:
            graph = tf.compat.v1.get_default_graph()
            known = len(graph.get_operations())
            place = tf.compat.v1.device(_device_of_inputs)
            with place, tf.control_dependencies(last):
                results = [self.step.layout.read(slot) for slot in group]
                self._job.run(self._apply, args=(results,))
            made = graph.get_operations()[known:]
            last = [op for op in made if op.op_def.is_stateful]
            if self.step.optimizer is not None:
                # A step that reads this version must read weights with the update.
                with tf.control_dependencies(last):
                    self._count(results[0].version)

    def _count(self, version: tf.Tensor) -> None:
        """Count an update and its staleness, from the version that its step read."""
        job = self._job
        missed = job.version.read_value() - version
        missed = tf.minimum(missed, LONGEST_STALENESS)
        one = tf.IndexedSlices(tf.ones([1], tf.int64), [missed])
        job.staleness.scatter_add(one)
        job.version.assign_add(1)

    def _apply(self, results: list[StepResults]) -> None:
        """Apply one update."""
        rows = tf.stack([one.rows for one in results])
        shares = tf.cast(rows / tf.reduce_sum(rows), tf.float64)
        step = self.step
        if step.optimizer is not None:
            each = zip(*(one.gradients for one in results), strict=True)
            rest = (_weighted_sum(gradients, shares) for gradients in each)
            wholes = [
                (v, admitted(v, [next(rest) for _ in shards_of(v)]) if has else None)
                for v, has in zip(step.variables, step.has_gradient, strict=True)
            ]
            step.optimizer.apply(*apply_arguments(step.optimizer, wholes))
        for i, assigned in enumerate(step.assigned):
            deltas = [one.deltas[i] for one in results]
            delta = deltas[0]
            if assigned.is_sum and len(deltas) > 1:
                delta = tf.add_n(deltas)
            elif not assigned.is_sum and delta.dtype.is_floating:
                delta = _weighted_sum(deltas, shares)
            raw = assigned.variable._value
            with tf.device(raw.device):
                if assigned.momentum == 1.0:
                    raw.assign_add(delta)
                else:
                    raw.assign(raw * tf.cast(assigned.momentum, raw.dtype) + delta)
        if step.logs.count:
            logs = _weighted_sum([one.logs for one in results], shares)
            step.last_numbers.assign(logs)


def _device_of_inputs(operation: tf.Operation) -> str:
    """Place an operation on the device of its inputs, so that they are not moved."""
    devices = [one.device for one in operation.inputs if one.shape.rank != 0]
    return operation.device or next(filter(None, devices), "")


def _weighted_sum(values: Sequence[Any], shares: tf.Tensor) -> Any:
    """Return the weighted sum of tensors or `tf.IndexedSlices`, in their order."""
    if len(values) == 1:
        return values[0]
    given = enumerate(values)
    weighted = [weigh([one], shares[i], is_positive=True)[0] for i, one in given]
    is_dense = isinstance(values[0], tf.Tensor)
    return tf.add_n(weighted) if is_dense else join_slices(weighted)
