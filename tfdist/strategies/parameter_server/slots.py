"""The inbox on the servers: where a worker leaves what a step has computed.

A worker assigns, and adds nothing, so a step that is done twice leaves what it would
leave once. Gradients lie beside their weights, so that an update need not move them;
the small ones of a server travel together.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.strategies.parameter_server.bundles import bundled, unpacked


class Moved(NamedTuple):
    """A variable that steps move beside the weights.

    Args:
        variable: The variable of Keras.
        is_metric: Whether it is the state of a metric.
        kept: How much of its value a step keeps before it adds its move: the momentum
            of a moving average, so that steps which read the same value do not move it
            too far; 1 of anything else. Default 1.
    """

    variable: Any
    is_metric: bool
    kept: float = 1.0


class Taken(NamedTuple):
    """What was left in a slot.

    Args:
        gradients: A tensor or `tf.IndexedSlices` for each weight.
        moves: How far each variable moves that steps move beside the weights.
        logs: The numbers that the step has returned, a float32 vector.
        version: How many updates the variables had seen when the step read them.
        rows: How many rows the step had.
    """

    gradients: list[Any]
    moves: list[tf.Tensor]
    logs: tf.Tensor
    version: tf.Tensor
    rows: tf.Tensor


class Layout:
    """What lies where in a slot.

    Args:
        weights: The variables of Keras that have a gradient.
        results: Symbolic results of a step.
        server_of_state: The device where all but gradients lie.
    """

    def __init__(self, weights: Sequence[Any], results: Any, server_of_state: str):
        self._shapes = [tf.TensorShape(weight.shape) for weight in weights]
        self._is_sparse = [
            isinstance(gradient, tf.IndexedSlices) for gradient in results.gradients
        ]
        self._moves = len(results.moves)
        places = []
        specs = []
        pairs = zip(weights, self._shapes, results.gradients, strict=True)
        for weight, shape, gradient in pairs:
            parts = _specs_of_gradient(gradient, shape)
            places += [weight._value.device] * len(parts)
            specs += parts
        rest = [tf.TensorSpec(move.shape, move.dtype) for move in results.moves]
        rest.append(tf.TensorSpec([len(results.logs)], tf.float32))
        rest += [tf.TensorSpec([], tf.int64)] * 2
        places += [server_of_state] * len(rest)
        self._bundles = bundled(places, specs + rest)

    @property
    def size(self) -> int:
        """How many variables a slot has."""
        return len(self._bundles)

    def make(self) -> list[tf.Variable]:
        """Make the variables of a slot, each on its server."""
        slot = []
        for bundle in self._bundles:
            with tf.device(bundle.device):
                slot.append(
                    tf.Variable(
                        tf.zeros([0], bundle.dtype),
                        trainable=False,
                        shape=tf.TensorShape(None),
                        dtype=bundle.dtype,
                    )
                )
        return slot

    def write(self, results: Any, slot: Sequence[tf.Tensor]) -> None:
        """Leave results in a slot.

        Args:
            results: Of the step.
            slot: The handles of the variables of the slot.
        """
        values: list[tf.Tensor] = []
        for gradient in results.gradients:
            if isinstance(gradient, tf.IndexedSlices):
                values += [gradient.values, gradient.indices]
            else:
                values.append(gradient)
        logs = tf.stack(results.logs) if results.logs else tf.zeros([0])
        values += [*results.moves, logs, results.version, results.rows]
        for handle, bundle in zip(slot, self._bundles, strict=True):
            packed = bundle.pack([values[member] for member in bundle.members])
            tf.raw_ops.AssignVariableOp(resource=handle, value=packed)

    def read(self, slot: Sequence[tf.Tensor]) -> Taken:
        """Take what was left in a slot.

        Args:
            slot: The handles of the variables of the slot.

        Returns:
            What a step has left there.
        """
        tensors = []
        for handle, bundle in zip(slot, self._bundles, strict=True):
            with tf.device(bundle.device):
                tensors.append(
                    tf.raw_ops.ReadVariableOp(resource=handle, dtype=bundle.dtype)
                )
        values = iter(unpacked(self._bundles, tensors))
        gradients: list[Any] = []
        for shape, is_sparse in zip(self._shapes, self._is_sparse, strict=True):
            gradient = next(values)
            if is_sparse:
                dense_shape = tf.constant(shape.as_list(), tf.int64)
                gradient = tf.IndexedSlices(gradient, next(values), dense_shape)
            gradients.append(gradient)
        moves = [next(values) for _ in range(self._moves)]
        return Taken(gradients, moves, *values)


def _specs_of_gradient(gradient: Any, shape: tf.TensorShape) -> list[tf.TensorSpec]:
    """Return the specs of what a gradient is made of."""
    if not isinstance(gradient, tf.IndexedSlices):
        return [tf.TensorSpec(shape, gradient.dtype)]
    return [
        tf.TensorSpec([None, *shape[1:]], gradient.values.dtype),
        tf.TensorSpec([None], gradient.indices.dtype),
    ]
