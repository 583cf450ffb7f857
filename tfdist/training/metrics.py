"""The metrics of all ranks, computed once an epoch from the states of each."""

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
    """Reduces what a step has counted, or returned.

    States, not values, are reduced, so that a metric over unequal numbers of examples,
    or one that is no mean at all, is exact. The variables stay as they are: nothing
    counts twice.

    Args:
        collective: How the ranks talk.
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._shares: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def note_share(self, trainer: Any, share: Any, outputs: Any) -> None:
        """Keep the weight of what a step returns, if it may return no metrics.

        Args:
            trainer: The model.
            share: The part of the global batch that the step had, a float64 scalar.
            outputs: What the step returned.
        """
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
        """Compute metrics from the states of all ranks.

        Args:
            trainer: The model.
            result: What computes the metrics from the variables, or else returns what
                the last step did.
            logs: Its argument, what the last step has returned.

        Returns:
            What `result` returns, the same on every rank.
        """
        with keras.StatelessScope(state_mapping=self._states_of_all(trainer)):
            returned = result(logs)
            if returned is not logs or not isinstance(logs, dict):
                return _values(returned)
            metrics = _values(_results_by_name(trainer))
        return {**logs, **self._logs_of_all(trainer, logs, metrics)}

    def _states_of_all(self, trainer: Any) -> list[tuple[Any, Any]]:
        """Return each metric variable with its value over all ranks."""
        by_aggregation: dict[str, list[Any]] = {}
        for variable in trainer.metrics_variables:
            by_aggregation.setdefault(variable.aggregation, []).append(variable)
        mapping: list[tuple[Any, Any]] = []
        for aggregation, variables in sorted(by_aggregation.items()):
            values = [value_here(variable) for variable in variables]
            name = "metrics of the model"
            if aggregation in ("sum", "mean"):
                values = self._collective.all_reduce(values, aggregation, name=name)
            else:
                values = self._collective.broadcast(values, name=name)
            mapping += zip(variables, values, strict=True)
        return mapping

    def _logs_of_all(
        self, trainer: Any, logs: dict[str, Any], metrics: dict[str, Any]
    ) -> dict[str, Any]:
        """Return what the last step returned, over all ranks.

        A value that is a metric's on every rank is the metric of all ranks. Any other
        is taken for a mean over the rows of a rank.
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
        # A rank without rows has nothing to say: its logs are those of a stand-in.
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
    """Return every metric under each name that a step may give it."""
    by_name = {metric.name: metric.result() for metric in trainer.metrics}
    return {**by_name, **trainer.get_metrics_result()}


def _values(results: Any) -> Any:
    """Read variables, which some metrics return as they are, while others' are ours."""
    return tf.nest.map_structure(
        lambda leaf: leaf.value if isinstance(leaf, keras.Variable) else leaf, results
    )


def _is_close(value: Any, metric: Any) -> bool:
    """Say whether a step returned a metric, and not something of the same name."""
    values, metrics = (tf.nest.flatten(one) for one in (value, metric))
    return len(values) == len(metrics) and all(
        np.shape(one) == np.shape(other)
        and other is not None
        and np.allclose(np.asarray(one), np.asarray(other), rtol=1e-5)
        for one, other in zip(values, metrics, strict=True)
    )


def _is_number(value: Any) -> bool:
    """Say whether a value is a single float."""
    return isinstance(value, tf.Tensor) and (
        value.shape.rank == 0 and value.dtype.is_floating
    )


def gather_rows(outputs: Any, collective: Collective) -> Any:
    """Join the rows of all ranks, in the order of the ranks.

    Args:
        outputs: A structure of tensors, also ragged ones, of this rank's rows.
        collective: How the ranks talk.

    Returns:
        The same structure, of the rows of all ranks.
    """

    def gather(leaf: Any) -> Any:
        if isinstance(leaf, tf.RaggedTensor):
            return tf.RaggedTensor.from_row_lengths(
                gather(leaf.values), gather(leaf.row_lengths())
            )
        return collective.all_gather(leaf, name=name_in_graph("predictions"))

    return tf.nest.map_structure(gather, outputs)


def join_rows(outputs: Sequence[Any]) -> Any:
    """Join the rows that the devices of this process have.

    Args:
        outputs: Structures of tensors, also ragged ones, by device.

    Returns:
        The same structure, of all rows.
    """
    if len(outputs) == 1:
        return outputs[0]
    return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), *outputs)
