"""Slots on the servers, in which workers leave the results of steps for an update.

Workers assign and never add, so that repeating a step leaves the same result.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.strategies.parameter_server.batch_codec import make_bundles, unpack_bundles


class StepResults(NamedTuple):
    """The results of a step, before they are applied.

    A gradient is a tensor or `tf.IndexedSlices` for each weight or shard; a delta is
    the change of a variable that the step assigns; `logs` are the returned numbers that
    are not metric results; `version` is the number of updates that the weights had
    seen.
    """

    gradients: list[Any]
    deltas: list[tf.Tensor]
    logs: tf.Tensor
    version: tf.Tensor
    rows: tf.Tensor


class SlotLayout:
    """The arrangement of a step's results in the variables of a slot.

    Gradients are stored on the servers of their weights, so that an update does not
    move them; everything else is on `server_of_state`.
    """

    def __init__(
        self, weights: Sequence[Any], results: StepResults, server_of_state: str
    ) -> None:
        self._shapes = [tf.TensorShape(weight.shape) for weight in weights]
        self._is_sparse = [isinstance(g, tf.IndexedSlices) for g in results.gradients]
        self._deltas = len(results.deltas)
        devices: list[str] = []
        specs: list[tf.TensorSpec] = []
        pairs = zip(weights, self._shapes, results.gradients, strict=True)
        for weight, shape, gradient in pairs:
            parts = _specs_of_gradient(gradient, shape)
            devices += [weight._value.device] * len(parts)
            specs += parts
        rest = [*results.deltas, results.logs, results.version, results.rows]
        specs += [tf.TensorSpec(one.shape, one.dtype) for one in rest]
        self._bundles = make_bundles([*devices, *[server_of_state] * len(rest)], specs)

    @property
    def size(self) -> int:
        """The number of variables in a slot."""
        return len(self._bundles)

    def make(self) -> list[tf.Variable]:
        """Create the variables of a slot, each on its server."""
        slot = []
        for bundle in self._bundles:
            with tf.device(bundle.device):
                first = tf.zeros([0], bundle.dtype)
                shape = tf.TensorShape(None)
                slot.append(tf.Variable(first, trainable=False, shape=shape))
        return slot

    def write(self, results: StepResults, slot: Sequence[tf.Tensor]) -> None:
        """Write results to a slot, given by the handles of its variables."""
        values: list[tf.Tensor] = []
        for gradient in results.gradients:
            if isinstance(gradient, tf.IndexedSlices):
                values += [gradient.values, gradient.indices]
            else:
                values.append(gradient)
        values += [*results.deltas, results.logs, results.version, results.rows]
        for handle, bundle in zip(slot, self._bundles, strict=True):
            packed = bundle.pack([values[member] for member in bundle.members])
            tf.raw_ops.AssignVariableOp(resource=handle, value=packed)

    def read(self, slot: Sequence[tf.Tensor]) -> StepResults:
        """Read results from a slot, given by the handles of its variables."""
        tensors = []
        for handle, bundle in zip(slot, self._bundles, strict=True):
            with tf.device(bundle.device):
                read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=bundle.dtype)
                tensors.append(read)
        values = iter(unpack_bundles(self._bundles, tensors))
        gradients: list[Any] = []
        for shape, is_sparse in zip(self._shapes, self._is_sparse, strict=True):
            gradient = next(values)
            if is_sparse:
                dense_shape = tf.constant(shape.as_list(), tf.int64)
                gradient = tf.IndexedSlices(gradient, next(values), dense_shape)
            gradients.append(gradient)
        deltas = [next(values) for _ in range(self._deltas)]
        return StepResults(gradients, deltas, *values)


def _specs_of_gradient(gradient: Any, shape: tf.TensorShape) -> list[tf.TensorSpec]:
    """Return the specs of the tensors of a gradient."""
    if not isinstance(gradient, tf.IndexedSlices):
        return [tf.TensorSpec(shape, gradient.dtype)]
    return [
        tf.TensorSpec([None, *shape[1:]], gradient.values.dtype),
        tf.TensorSpec([None], gradient.indices.dtype),
    ]
