"""Metrics over all ranks, computed once per epoch from each rank's states."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf

from tfdist.collectives.base import Collective, name_in_graph
from tfdist.compat.keras.learning_rates import replaces
from tfdist.compat.keras.losses_and_metrics import Noted
from tfdist.compat.mirrored import value_here
from tfdist.compat.user_warnings import warn_user
from tfdist.data.sharding import Shard, has_rows, rows_of


class MetricsOfRanks:
    """Metric results and logs over all ranks.

    It reduces states, not values, so every metric is exact, also one that is not a
    mean. The variables stay unchanged, so nothing counts twice.
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        # By model, and by the name of the step.
        self._steps: WeakKeyDictionary[Any, dict[str, _CustomStep]] = (
            WeakKeyDictionary()
        )
        # By model, each metric variable with its value on this rank, and over all
        # ranks, when they last met.
        self._met: WeakKeyDictionary[Any, list[tuple[Any, Any, Any]]] = (
            WeakKeyDictionary()
        )

    def note_step(
        self, trainer: Any, what: str, share: Any, outputs: Any, noted: Noted
    ) -> None:
        """Record what a custom step is about to return, and this rank's share of it.

        `noted` lists the results of metrics in the step.
        """
        if not isinstance(outputs, dict) or not is_custom(trainer):
            return
        steps = self._steps.setdefault(trainer, {})
        if what not in steps:
            with tf.init_scope():
                steps[what] = _CustomStep(tf.Variable(0.0, dtype=tf.float64))
        steps[what].share.assign(share)
        metrics = {id(value): (metric, name) for value, metric, name in noted}
        leaves = tf.nest.flatten(outputs)
        steps[what].metrics = {
            i: metrics[id(leaf)] for i, leaf in enumerate(leaves) if id(leaf) in metrics
        }
        results = [value for value, *_ in noted]
        steps[what].derived = [
            name
            for name, log in outputs.items()
            if id(log) not in metrics and depends_on(log, results)
        ]

    def note_logs(self, trainer: Any, what: str, logs: Any) -> None:
        """Record the logs that a step has returned."""
        step = self._steps.get(trainer, {}).get(what)
        if step is not None:
            step.logs = logs

    def result(self, trainer: Any, result: Callable[[Any], Any], logs: Any) -> Any:
        """Return `result(logs)` with the metric states of all ranks.

        If `result` only returns `logs`, the logs of the last step are reduced instead.
        """
        states = self.states_of_all(trainer.metrics_variables)
        self._met[trainer] = [(v, value_here(v), total) for v, total in states]
        with keras.StatelessScope(state_mapping=states):
            returned = result(logs)
            if returned is not logs:
                return _values(returned)
            steps = self._steps.get(trainer, {}).values()
            step = next((one for one in steps if one.logs is logs), None)
            if step is None:
                return _values(logs)
            metrics = {id(metric): metric for metric, _ in step.metrics.values()}
            results = {key: metric.result() for key, metric in metrics.items()}
            of_metrics = {
                i: _values(
                    results[id(metric)] if key is None else results[id(metric)][key]
                )
                for i, (metric, key) in step.metrics.items()
            }
        return self._logs_of_all(step, of_metrics)

    def states_of_all(self, variables: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Return each metric variable with its value over all ranks."""
        by_aggregation: dict[str, list[Any]] = {}
        for variable in variables:
            by_aggregation.setdefault(variable.aggregation, []).append(variable)
        mapping: list[tuple[Any, Any]] = []
        for aggregation, group in sorted(by_aggregation.items()):
            values = [value_here(variable) for variable in group]
            name = name_in_graph("metrics of the model")
            if aggregation in ("sum", "mean"):
                values = self._collective.all_reduce(values, aggregation, name=name)
            else:
                values = self._collective.broadcast(values, name=name)
            mapping += zip(group, values, strict=True)
        return mapping

    def last_states(self, variables: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Return metric variables with their values over all ranks; none if unknown.

        They are known after `fit` and `evaluate`, until the variables change.
        """
        if not tf.executing_eagerly():
            return []
        wanted = {id(variable) for variable in variables}
        for met in self._met.values():
            found = [each for each in met if id(each[0]) in wanted]
            if len(found) == len(wanted) and all(map(_is_unchanged, found)):
                return [(variable, total) for variable, _, total in found]
        return []

    def forget(self, trainer: Any) -> None:
        """Forget the states of a model's metrics, which are being reset."""
        self._met.pop(trainer, None)

    def _logs_of_all(self, step: "_CustomStep", metrics: dict[int, Any]) -> Any:
        """Return the logs of the last step, reduced over all ranks.

        Floats of the same shape are averaged, weighted by rows. Other numbers are those
        of the last rank with rows.
        """
        for name in step.derived:
            warn_user(
                f"The log {name!r} is an average of ranks, each with its own rows. "
                "Received: a number that a step computes from metrics. Compute it in "
                "get_metrics_result, where metrics cover all rows."
            )
        leaves = [_values(leaf) for leaf in tf.nest.flatten(step.logs)]
        numbers = {
            i: tf.cast(leaf, tf.float64) if leaf.dtype.is_floating else leaf
            for i, leaf in enumerate(leaves)
            if i not in metrics and _is_number(leaf)
        }
        mine = [float(step.share), [n.numpy().tolist() for n in numbers.values()]]
        by_rank = self._collective.exchange("logs of the last step", mine)
        # The logs of a rank without rows come from a placeholder.
        shares, given = zip(*(one for one in by_rank if one[0] > 0), strict=True)
        for i, values in zip(numbers, zip(*given, strict=True), strict=True):
            value = values[-1]
            if leaves[i].dtype.is_floating and len({*map(np.shape, values)}) == 1:
                parts = zip(shares, values, strict=True)
                value = sum(share * np.asarray(each) for share, each in parts)
            leaves[i] = tf.constant(value, leaves[i].dtype)
        for i, result in metrics.items():
            leaves[i] = result
        return tf.nest.pack_sequence_as(step.logs, leaves)


def _is_unchanged(met: tuple[Any, Any, Any]) -> bool:
    """Return whether a variable has the value on this rank that it had."""
    variable, value, _ = met
    return bool(tf.reduce_all(tf.equal(value_here(variable), value)))


@dataclass
class _CustomStep:
    """A step that may return other values than metrics, and its last logs."""

    # This rank's share of the last batch.
    share: tf.Variable
    # Metrics with the key in their results, by index of the flattened logs.
    metrics: dict[int, tuple[Any, str | None]] = field(default_factory=dict)
    logs: Any = None
    # The names of logs that are computed from results of metrics.
    derived: list[str] = field(default_factory=list)


def is_custom(trainer: Any) -> bool:
    """Return whether the steps of a model may return other values than its metrics."""
    return replaces(trainer, "train_step", "test_step", "compute_metrics")


def _values(results: Any) -> Any:
    """Return the values of Keras variables, which some metrics return as results."""
    return tf.nest.map_structure(
        lambda leaf: leaf.value if isinstance(leaf, keras.Variable) else leaf, results
    )


def _is_number(value: Any) -> bool:
    """Return whether a value is a dense tensor of numbers."""
    return isinstance(value, tf.Tensor) and (
        value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool
    )


def depends_on(number: Any, values: Sequence[Any]) -> bool:
    """Return whether a tensor of a graph was computed from one of some values."""
    if tf.executing_eagerly() or not isinstance(number, tf.Tensor):
        return False
    wanted = {id(value.op) for value in values if isinstance(value, tf.Tensor)}
    seen, ahead = set[int](), [number.op]
    while ahead:
        operation = ahead.pop()
        if id(operation) in wanted:
            return True
        if id(operation) not in seen:
            seen.add(id(operation))
            ahead += [tensor.op for tensor in operation.inputs]
    return False


def own_rows(outputs: Any, shard: Shard) -> Any:
    """Return the predictions for a rank's rows, none for a placeholder."""
    must = "Every output of predict must have equally many rows for each row of input."
    remedy = "Repeat it for each row, or call predict_on_batch, which one rank runs."
    is_traced = not tf.executing_eagerly()

    def own(leaf: Any) -> Any:
        is_sparse = isinstance(leaf, tf.SparseTensor)
        # In a graph, dense rows with a static number do not depend on the input.
        is_fixed = is_traced and isinstance(leaf, tf.Tensor)
        is_fixed = is_fixed and leaf.shape[:1].is_fully_defined()
        if is_sparse or is_fixed or not has_rows(leaf):
            what = f"a {'sparse' if is_sparse else 'dense'} tensor of {leaf.shape}"
            raise ValueError(f"{must} Received: {what}. {remedy}")
        rows = rows_of(leaf)
        is_right = tf.equal(rows % tf.maximum(shard.own, 1), 0)
        given = ["Received:", rows, "rows for", shard.own]
        with tf.control_dependencies(
            [tf.debugging.Assert(is_right, [must, *given, f"rows of input. {remedy}"])]
        ):
            kept = tf.where(shard.own > 0, rows, tf.zeros_like(rows))
        return leaf[:kept] if shard.stand_in else leaf

    return tf.nest.map_structure(own, outputs)


def gather_rows(outputs: Any, collective: Collective) -> Any:
    """Concatenate the rows of all ranks in rank order, also of ragged tensors."""

    def gather(leaf: Any) -> Any:
        if isinstance(leaf, tf.RaggedTensor):
            return tf.RaggedTensor.from_row_lengths(
                gather(leaf.values), gather(leaf.row_lengths())
            )
        return collective.all_gather(leaf, name=name_in_graph("predictions"))

    return tf.nest.map_structure(gather, outputs)


def join_rows(outputs: Sequence[Any]) -> Any:
    """Concatenate the rows of this process's devices, also of ragged tensors."""
    if len(outputs) == 1:
        return outputs[0]
    return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), *outputs)
