"""The inbox on the servers: where a worker leaves what a step has computed.

A worker assigns, and adds nothing, so a step that is done twice leaves what it would
leave once. Gradients lie beside their weights, so that an update need not move them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf


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
        self._weights = list(weights)
        self._moves = [(m.dtype, m.shape) for m in results.moves]
        self._logs = len(results.logs)
        self._server_of_state = server_of_state
        self._gradients = list(results.gradients)
        dtypes = {dtype for dtype, _ in self._moves} | {tf.float32, tf.int64}
        self._dtypes = sorted(dtypes, key=lambda dtype: dtype.name)

        self._places = self._plan()

    @property
    def size(self) -> int:
        """How many variables a slot has."""
        return len(self._places)

    def _plan(self) -> list[tuple[str, tf.DType]]:
        """Work out the device and the type of each variable of a slot."""
        places = []
        for weight, gradient in zip(self._weights, self._gradients, strict=True):
            dtypes = [gradient.dtype]
            if isinstance(gradient, tf.IndexedSlices):
                dtypes = [gradient.values.dtype, gradient.indices.dtype]
            places += [(weight._value.device, dtype) for dtype in dtypes]
        return places + [(self._server_of_state, dtype) for dtype in self._dtypes]

    def make(self) -> list[tf.Variable]:
        """Make the variables of a slot, each on its server."""
        slot = []
        for device, dtype in self._places:
            with tf.device(device):
                first = tf.zeros([0], dtype)
                slot.append(
                    tf.Variable(
                        first, trainable=False, shape=tf.TensorShape(None), dtype=dtype
                    )
                )
        return slot

    def write(self, results: Any, slot: Sequence[tf.Tensor]) -> None:
        """Leave results in a slot.

        Args:
            results: Of the step.
            slot: The handles of the variables of the slot.
        """
        values: list[Any] = []
        for gradient in results.gradients:
            if isinstance(gradient, tf.IndexedSlices):
                values += [gradient.values, gradient.indices]
            else:
                values.append(gradient)
        for dtype in self._dtypes:
            flat = [tf.reshape(m, [-1]) for m in results.moves if m.dtype == dtype]
            if dtype == tf.float32:
                flat.append(tf.stack(results.logs) if results.logs else tf.zeros([0]))
            if dtype == tf.int64:
                flat.append(tf.stack([results.version, results.rows]))
            values.append(tf.concat(flat, 0))
        for handle, value in zip(slot, values, strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def read(self, slot: Sequence[tf.Tensor]) -> Taken:
        """Take what was left in a slot.

        Args:
            slot: The handles of the variables of the slot.

        Returns:
            What a step has left there.
        """
        handles = iter(slot)

        def value(dtype: tf.DType) -> tf.Tensor:
            return tf.raw_ops.ReadVariableOp(resource=next(handles), dtype=dtype)

        gradients = []
        for weight, gradient in zip(self._weights, self._gradients, strict=True):
            shape = tf.TensorShape(weight.shape)
            with tf.device(weight._value.device):
                if isinstance(gradient, tf.IndexedSlices):
                    rows = value(gradient.values.dtype)
                    rows.set_shape([None, *shape[1:]])
                    indices = value(gradient.indices.dtype)
                    indices.set_shape([None])
                    dense_shape = tf.constant(shape.as_list(), tf.int64)
                    gradients.append(tf.IndexedSlices(rows, indices, dense_shape))
                else:
                    dense = value(gradient.dtype)
                    dense.set_shape(shape)
                    gradients.append(dense)
        packs = {dtype: value(dtype) for dtype in self._dtypes}
        return self._unpacked(gradients, packs)

    def _unpacked(self, gradients: list[Any], packs: dict[Any, Any]) -> Taken:
        """Cut the packed vectors into what was put in."""
        starts = dict.fromkeys(packs, 0)
        moves = []
        for dtype, shape in self._moves:
            start, size = starts[dtype], shape.num_elements()
            moves.append(tf.reshape(packs[dtype][start : start + size], shape))
            starts[dtype] += size
        start = starts[tf.float32]
        logs = tf.reshape(packs[tf.float32][start : start + self._logs], [self._logs])
        start = starts[tf.int64]
        version, rows = tf.unstack(packs[tf.int64][start : start + 2], 2)
        return Taken(gradients, moves, logs, version, rows)
