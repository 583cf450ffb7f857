"""Batch normalization over ranks, and activity regularizers."""

import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.detect import detect_membership
from tfdist.compat.keras.hooks import current_hooks, current_step
from tfdist.compat.keras.versions import is_at_least
from tfdist.compat.mirrored import outside
from tfdist.data.sharding import is_rank_part


class SharedBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization whose training moments are averaged over ranks."""

    def average(self, moments: Any) -> Any:
        """Return the average over ranks of the stacked mean and mean square."""
        raise NotImplementedError

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Return the mean and the variance over all ranks."""
        mean, variance = super()._moments(inputs, mask)
        square = keras.ops.square(mean) + variance
        mean, square = keras.ops.unstack(
            self.average(keras.ops.stack([mean, square])), 2
        )
        # Rounding can make the variance of an almost constant channel negative.
        variance = keras.ops.maximum(square - keras.ops.square(mean), 0)
        return mean, variance


def call_inside(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a layer, but not on the values of all devices at once."""
    for value in tf.nest.flatten(args):
        is_distributed = isinstance(value, tf.distribute.DistributedValues)
        if is_distributed and not isinstance(value, tf.Variable):
            raise outside(f"a batch for {self.name}")
    return original(self, *args, **kwargs)


def moments_of_all_rows(original: Any, self: Any, inputs: Any, mask: Any) -> Any:
    """Return the moments over ranks of masked inputs, which Keras does not reduce."""
    ops, replica = keras.ops, tf.distribute.get_replica_context()
    is_alone = replica is None or current_hooks() is None
    if mask is None or not self.synchronized or is_alone:
        return original(self, inputs, mask)
    mask = ops.expand_dims(ops.cast(mask, "bool"), -1)
    is_kept = ops.broadcast_to(mask, ops.shape(inputs))
    kept = ops.where(is_kept, inputs, 0)
    counts = ops.cast(is_kept, inputs.dtype)
    sums = [ops.sum(v, self._reduction_axes) for v in (counts, kept, ops.square(kept))]
    count, total, squares = replica.all_reduce(tf.distribute.ReduceOp.SUM, sums)
    divisor = count + keras.config.epsilon()
    mean = total / divisor
    variance = (squares - 2 * mean * total + ops.square(mean) * count) / divisor
    return mean, ops.maximum(variance, 0)


def momentum_of(model: Any, variable: Any) -> float | None:
    """Return the momentum of the batch normalization that owns a variable, or None."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and any(
            variable is own for own in layer.non_trainable_variables
        ):
            return float(layer.momentum)
    return None


def weights_of(model: Any) -> list[Any]:
    """Return the weights of layers that are trained, or would be if not frozen."""
    return [
        variable
        for layer in model._flatten_layers()
        for variable in layer._trainable_variables
    ]


def adapt_to_whole(original: Any, self: Any, data: Any, *args: Any, **kw: Any) -> Any:
    """Adapt a preprocessing layer like Keras; refuse the part of one rank."""
    is_part = isinstance(data, tf.data.Dataset) and is_rank_part(data)
    if is_part and detect_membership().size > 1:
        raise ValueError(
            f"The layer {self.name!r} must be adapted to the whole data, since each "
            "rank would map its rows in another way. Received: a dataset of this "
            "rank's part. Adapt it before tfdist.data.shard, or to a dataset that was "
            "read with rank=0, size=1."
        )
    return original(self, data, *args, **kw)


def tables_of(model: Any) -> dict[str, str | list[float]]:
    """Return what tells the tables of preprocessing layers apart, by layer."""
    found: dict[str, str | list[float]] = {}
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.StringLookup | keras.layers.IntegerLookup):
            found[layer.name] = hex(zlib.crc32(repr(layer.get_vocabulary()).encode()))
        elif isinstance(layer, keras.layers.Discretization) and layer.bin_boundaries:
            found[layer.name] = [float(np.sum(layer.bin_boundaries))]
        elif isinstance(layer, keras.layers.Normalization) and layer.mean is not None:
            found[layer.name] = [
                float(np.sum(layer.mean)),
                float(np.sum(layer.variance)),
            ]
    return found


def is_normalized(model: Any, variable: Any) -> bool:
    """Return whether a layer replaces a weight by its normalized value."""
    kind = keras.layers.SpectralNormalization
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, kind)]
    return any(variable is getattr(layer, "kernel", None) for layer in layers)


def penalty_of_all_rows(original: Any, self: Any, x: Any) -> Any:
    """Divide the penalty of activities by this rank's share of the rows."""
    penalty = original(self, x)
    step = current_step()
    # Newer versions of Keras make it a mean over rows.
    if step is None or isinstance(x, keras.Variable) or is_at_least(3, 14):
        return penalty
    share = keras.ops.cast(step.share(), penalty.dtype)
    return keras.ops.divide_no_nan(penalty, share)
