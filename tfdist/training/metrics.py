"""Metrics over all ranks, computed once per epoch from each rank's states."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.collectives.base import name_in_graph
from tfdist.compat.mirrored import value_here


class MetricsOfRanks:
    """Metric results and logs over all ranks.

    It reduces states, not values, so every metric is exact, also one that is not a
    mean. The variables stay unchanged, so nothing counts twice.
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._shares: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def note_share(self, trainer: Any, share: Any, outputs: Any) -> None:
        """Record this rank's share of the batch if a step may return non-metrics."""
        is_custom = any(
            getattr(getattr(trainer, name), "__func__", None)
            is not getattr(keras.Model, name)
            for name in ("train_step", "test_step", "compute_metrics")
        )
        if is_custom and isinstance(outputs, dict):
            if trainer not in self._shares:
                with tf.init_scope():
                    self._shares[trainer] = tf.Variable(0.0, dtype=tf.float64)
            self._shares[trainer].assign(share)

    def result(self, trainer: Any, result: Callable[[Any], Any], logs: Any) -> Any:
        """Return `result(logs)` with the metric states of all ranks.

        If `result` only returns `logs`, the logs of the last step are reduced instead.
        """
        with keras.StatelessScope(
            state_mapping=self.states_of_all(trainer.metrics_variables)
        ):
            returned = result(logs)
            if returned is not logs or not isinstance(logs, dict):
                return _values(returned)
            metrics = _values(_results_by_name(trainer))
        return {**logs, **self._logs_of_all(trainer, logs, metrics)}

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

    def _logs_of_all(
        self, trainer: Any, logs: dict[str, Any], metrics: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the logs of the last step, reduced over all ranks.

        A log that equals a metric on every rank becomes the metric over all ranks. Any
        other float is averaged, weighted by rows.
        """
        keys = sorted(logs)
        if not keys or trainer not in self._shares:
            return {}
        here = [(v, value_here(v)) for v in trainer.metrics_variables]
        with keras.StatelessScope(state_mapping=here):
            own = _values(_results_by_name(trainer))
        numbers = [logs[key] if _is_number(logs[key]) else 0.0 for key in keys]
        values = tf.stack([tf.cast(number, tf.float64) for number in numbers])
        differ = [not _is_close(logs[key], own.get(key)) for key in keys]
        # The logs of a rank without rows come from a placeholder; its share is 0.
        weighed = [
            tf.math.multiply_no_nan(each, self._shares[trainer])
            for each in (values, tf.cast(differ, tf.float64))
        ]
        sums, differing = self._collective.all_reduce(
            weighed, name="logs of the last step"
        )
        of_all = {}
        for i, key in enumerate(keys):
            if differing[i] == 0:
                of_all[key] = metrics[key]
            elif _is_number(logs[key]):
                of_all[key] = tf.cast(sums[i], logs[key].dtype)
        return of_all


def _results_by_name(trainer: Any) -> dict[str, Any]:
    """Return all metric results, under each name that a step may use."""
    by_name = {metric.name: metric.result() for metric in trainer.metrics}
    return {**by_name, **trainer.get_metrics_result()}


def _values(results: Any) -> Any:
    """Return the values of Keras variables, which some metrics return as results."""
    return tf.nest.map_structure(
        lambda leaf: leaf.value if isinstance(leaf, keras.Variable) else leaf, results
    )


def _is_close(value: Any, metric: Any) -> bool:
    """Return whether a log is a metric's result, not only of the same name."""
    values, metrics = (tf.nest.flatten(one) for one in (value, metric))
    return len(values) == len(metrics) and all(
        np.shape(one) == np.shape(other)
        and other is not None
        and np.allclose(np.asarray(one), np.asarray(other), rtol=1e-5)
        for one, other in zip(values, metrics, strict=True)
    )


def _is_number(value: Any) -> bool:
    """Return whether a value is a float scalar tensor."""
    return isinstance(value, tf.Tensor) and (
        value.shape.rank == 0 and value.dtype.is_floating
    )


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
