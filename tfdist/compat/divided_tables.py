"""Embeddings of which each rank keeps some rows, and what optimizers ask of all."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from keras.src.backend.common.stateless_scope import get_stateless_scope

from tfdist.compat.keras.hooks import current_hooks
from tfdist.compat.keras.variables import draw_rows
from tfdist.compat.mirrored import is_building
from tfdist.compat.owned_variables import DividedTable, divide, owner_of, owners_of
from tfdist.compat.patching import holding
from tfdist.sharding.assignment import rows_by_rank


def build_divided(original: Any, self: Any, input_shape: Any = None) -> None:
    """Build an `Embedding` like Keras, a large one with this rank's rows."""
    owners = owners_of(tf.distribute.get_strategy())
    row_bytes = self.output_dim * tf.as_dtype(self.variable_dtype).size
    if self.built or owners is None or not owners.divides(self.input_dim, row_bytes):
        original(self, input_shape)
        return
    _check_divisible(self, self.input_dim * row_bytes)
    rows = rows_by_rank(self.input_dim, owners.size)[owners.rank]
    draw = partial(draw_rows, self.embeddings_initializer, rows)
    with holding(self, "embeddings_initializer", draw):
        original(self, input_shape)
    divide(self._embeddings, owners)


def _check_divisible(layer: Any, size_bytes: int) -> None:
    """Raise `ValueError` for an `Embedding` that needs more than its rows."""
    given = {
        "embeddings_regularizer": layer.embeddings_regularizer,
        "embeddings_constraint": layer.embeddings_constraint,
        "lora_rank": layer.lora_rank,
        "a quantized dtype": layer.quantization_mode,
    }
    found = [name for name, value in given.items() if value is not None]
    if found:
        raise ValueError(
            "shard_embeddings divides the table of an Embedding, whose rows are then "
            f"looked up and updated alone. Received: {layer.name} of {size_bytes} "
            f"bytes with {', '.join(found)}. Leave that out, or keep the table whole: "
            f"give shard_embeddings more than {size_bytes} bytes."
        )


def look_up_divided(layer: Any, inputs: Any) -> Any:
    """Look up rows of a divided table like Keras."""
    table = layer._embeddings
    if isinstance(inputs, tf.RaggedTensor):
        return inputs.with_flat_values(look_up_divided(layer, inputs.flat_values))
    # Keras sums what sparse ids have in common.
    is_summed = isinstance(inputs, tf.SparseTensor)
    ids = tf.sparse.to_dense(inputs) if is_summed else tf.convert_to_tensor(inputs)
    if ids.dtype not in (tf.int32, tf.int64):
        ids = tf.cast(ids, tf.int32)
    flat = tf.reshape(ids, [-1])
    if get_stateless_scope() is not None or is_building():
        # Only the shape matters, and other ranks may build at other times.
        rows = tf.zeros([tf.size(flat), layer.output_dim], table._dtype)
    else:
        # As in Keras, a negative index counts from the end.
        flat = tf.where(flat < 0, flat + layer.input_dim, flat)
        weight = _weight_of_step(table)
        rows = table.owners.look_up(table, flat, weight, is_summed=is_summed)
    found = tf.reshape(rows, tf.concat([tf.shape(ids), [layer.output_dim]], 0))
    found.set_shape(ids.shape.concatenate([layer.output_dim]))
    return tf.cast(found, layer.compute_dtype)


def _weight_of_step(table: DividedTable) -> Any:
    """Return the weight of this rank's gradients in a step that all ranks run."""
    hooks = current_hooks()
    weight = None if hooks is None else hooks.weight_of_lookups()
    if weight is None:
        raise RuntimeError(
            "With shard_embeddings, all ranks look up rows together: in fit, evaluate "
            f"and predict, or in strategy.run. Received: a lookup in {table.path} "
            "outside of them, as by model(x), test_on_batch or predict_on_batch. Call "
            "model.predict on every rank, or save the model and load it elsewhere."
        )
    return weight


def clip_parts(
    original: Callable[..., Any],
    optimizer: Any,
    grads: Sequence[Any],
    variables: Sequence[Any],
) -> list[Any]:
    """Clip like Keras; the norm of a divided table is that of all ranks' parts."""
    pairs = enumerate(zip(grads, variables, strict=False))
    tables = {i: v for i, (_, v) in pairs if isinstance(v, DividedTable)}
    if not tables or not (optimizer.clipnorm or optimizer.global_clipnorm):
        return list(original(optimizer, grads))
    squares = [
        tf.reduce_sum(tf.square(getattr(grads[i], "values", grads[i]))) for i in tables
    ]
    (first, *_) = tables.values()
    totals = first.owners.sum(squares, "norms of tables")
    norms = dict(zip(tables, map(tf.sqrt, totals), strict=True))
    # Keras clips the norms in place of the gradients, and these by the same factor.
    clipped = list(original(optimizer, [norms.get(i, g) for i, g in enumerate(grads)]))
    for i, norm in norms.items():
        factor, part = tf.math.divide_no_nan(clipped[i], norm), grads[i]
        if optimizer.clipnorm and isinstance(part, tf.IndexedSlices):
            values = part.values * factor
            clipped[i] = tf.IndexedSlices(values, part.indices, part.dense_shape)
        else:
            # As in Keras, a dense gradient.
            clipped[i] = part * factor
    return clipped


def finite_on_all_ranks(original: Any, self: Any, grads: Sequence[Any]) -> Any:
    """Return whether gradients are finite, also of the rows of other ranks."""
    is_finite = original(self, grads)
    tables = [v for v in self._trainable_variables if isinstance(v, DividedTable)]
    if not tables or current_hooks() is None:
        return is_finite
    number = tf.cast(tf.logical_not(is_finite), tf.int32)
    (wrong,) = tables[0].owners.sum([number], "gradients of tables that are finite")
    return tf.equal(wrong, 0)


def reset_parts(original: Any, self: Any) -> None:
    """Reset accumulated gradients like Keras; of a table, only this rank's rows."""
    given = self._accumulated_gradients
    parts = [variable for variable in given if owner_of(variable) is not None]
    for variable in parts:
        variable._value.assign(tf.zeros_like(variable._value))
    whole = [variable for variable in given if owner_of(variable) is None]
    with holding(self, "_accumulated_gradients", whole):
        original(self)
