"""What a step returns: results of metrics, and numbers of its own."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Returned:
    """Knows where a step returns the result of a metric, and where another number.

    The result of a metric within a step is that of one batch; the one that counts is
    computed from all that was applied.

    Args:
        trainer: The model.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._structure: Any = None
        self._sources: list[Any] = []

    @property
    def count(self) -> int:
        """How many other numbers there are."""
        return self._sources.count(None)

    def note(self, outputs: Any, noted: list[Any]) -> list[tf.Tensor]:
        """Keep what a step returns, while it is traced.

        Args:
            outputs: What the step returns.
            noted: As `noted_results` has noted them.

        Returns:
            The other numbers, as float32.
        """
        outputs = outputs if isinstance(outputs, dict) else {}
        leaves = tf.nest.flatten(outputs)
        self._structure = tf.nest.map_structure(lambda _: 0, outputs)
        self._sources = [
            next(((m, name) for value, m, name in noted if value is leaf), None)
            for leaf in leaves
        ]
        return [
            self._number(leaf, noted)
            for leaf, source in zip(leaves, self._sources, strict=True)
            if source is None
        ]

    def metric_results(self) -> list[tf.Tensor]:
        """Return the results of the metrics that the step returns, in their order."""
        results = []
        for metric, name in filter(None, self._sources):
            result = metric.result() if name is None else metric.result()[name]
            results.append(tf.convert_to_tensor(result))
        return results

    def filled(self, results: Sequence[Any], numbers: Any) -> dict[str, Any]:
        """Put results and numbers where the step has returned such.

        Args:
            results: As `metric_results`.
            numbers: What `note` has returned, an array.

        Returns:
            The structure that the step returns.
        """
        rest, others = iter(results), iter(numbers.tolist())
        leaves = [next(others if source is None else rest) for source in self._sources]
        logs: dict[str, Any] = tf.nest.pack_sequence_as(self._structure, leaves)
        return logs

    def _number(self, leaf: Any, noted: list[Any]) -> tf.Tensor:
        """Return a number that is no result of a metric, or refuse it."""
        number = tf.convert_to_tensor(leaf)
        self._check_no_metric(number, noted)
        is_number = number.dtype.is_floating or number.dtype.is_integer
        if number.shape.rank != 0 or not is_number:
            raise ValueError(
                "A step may return results of metrics and single numbers, under "
                f"parameter servers. Received: {number.dtype.name} of shape "
                f"{number.shape} from the model {self._trainer.name!r}. Let a "
                "keras.metrics.Metric of the model add it up."
            )
        return tf.cast(number, tf.float32)

    def _check_no_metric(self, number: tf.Tensor, noted: list[Any]) -> None:
        """Refuse a number that was computed from a metric, which has one batch here."""
        results = {id(value.op) for value, *_ in noted if isinstance(value, tf.Tensor)}
        seen, ahead = set[int](), [number.op]
        while ahead:
            operation = ahead.pop()
            if id(operation) in results:
                raise ValueError(
                    "A step may return results of metrics as they are, under parameter "
                    "servers: within a step they are those of one batch. Received: a "
                    "number computed from such a result in the model "
                    f"{self._trainer.name!r}. Make it a keras.metrics.Metric."
                )
            if id(operation) not in seen:
                seen.add(id(operation))
                ahead += [tensor.op for tensor in operation.inputs]
