"""Collectives on values that can be converted to tensors."""

from typing import Any

import tensorflow as tf

from tfdist.collectives.base import to_tensor
from tfdist.collectives.wire_format import (
    from_move,
    to_move,
    to_reduce,
    without_bfloat16,
)
from tfdist.horovod.native import native


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = native.Compression.none,
    **options: Any,
) -> Any:
    """Reduce a value over all ranks, by default to its average.

    Integers of 8 and 16 bits are summed as 32-bit ones; floats of 8 and 16 bits, except
    float16, as float32. An average of integers is rounded towards zero.

    Args:
        value: A number, array, tensor, variable or `tf.IndexedSlices`, of floats or of
            integers except uint64, with the same shape on all ranks.
        name: Name of the operation in graphs. Default None: a generated one. A bool
            here is `average`, which is second in `horovod.tensorflow`.
        average: The old name of `op`: True for `Average`, False for `Sum`.
        prescale_factor: The factor before the reduction. Default 1.
        postscale_factor: The factor after the reduction. Default 1.
        op: `Average`, `Sum`, `Min`, `Max`, `Product` or `Adasum`. Default `Average`.
        compression: `Compression.none` or `Compression.fp16`. Default none.
        **options: `process_set`, `device_dense`, `device_sparse` and
            `ignore_name_scope`, as in `horovod.tensorflow`.

    Returns:
        A tensor of the same shape and dtype, equal on all ranks.

    Raises:
        TypeError: If the value has another dtype, or an option is unknown.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> float(hvd.allreduce(2.0, op=hvd.Sum))
        2.0
    """
    if isinstance(name, bool):
        name, average = None, name
    tensor = to_tensor(value)
    reduced = native.allreduce(
        _to_reduce(tensor),
        name=name,
        average=average,
        op=op,
        compression=compression,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        **options,
    )
    return tf.cast(reduced, tensor.dtype)


def allgather(value: Any, name: str | None = None, **options: Any) -> Any:
    """Concatenate the rows of a value over all ranks.

    Args:
        value: An array, tensor or variable, of the same shape on all ranks except for
            the number of rows.
        name: Name of the operation in graphs. Default None: a generated one.
        **options: `process_set` and `ignore_name_scope`, as in `horovod.tensorflow`.

    Returns:
        A tensor of the same dtype with the rows of rank 0, then of rank 1, and so on.

    Raises:
        TypeError: If the dtype has no fixed size, such as string.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> hvd.allgather([[1, 2]]).shape
        TensorShape([1, 2])
    """
    tensor = tf.convert_to_tensor(value)
    gathered = native.allgather(to_move(tensor), name=name, **options)
    return from_move(gathered, tensor.dtype)


def broadcast(
    value: Any, root_rank: int, name: str | None = None, **options: Any
) -> Any:
    """Send one rank's value to all ranks.

    Args:
        value: A number, array, tensor or variable, of the same shape on all ranks.
        root_rank: The rank that sends its value.
        name: Name of the operation in graphs. Default None: a generated one.
        **options: `process_set` and `ignore_name_scope`, as in `horovod.tensorflow`.

    Returns:
        A tensor of the same shape and dtype, equal on all ranks.

    Raises:
        TypeError: If the dtype has no fixed size, such as string.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> int(hvd.broadcast(7, root_rank=0))
        7
    """
    tensor = tf.convert_to_tensor(value)
    moved = native.broadcast(to_move(tensor), root_rank, name=name, **options)
    return from_move(moved, tensor.dtype)


def reducescatter(
    value: Any, name: str | None = None, op: Any = native.Average, **options: Any
) -> Any:
    """Reduce a value over all ranks, and give each rank its part of the rows.

    Args:
        value: An array, tensor or variable, of a dtype that `allreduce` supports and of
            the same shape on all ranks.
        name: Name of the operation in graphs. Default None: a generated one.
        op: `Average` or `Sum`. Default `Average`.
        **options: `process_set`, `compression`, `device_dense`, `prescale_factor`,
            `postscale_factor` and `ignore_name_scope`, as in `horovod.tensorflow`.

    Returns:
        A tensor of the same dtype with the rows of this rank.

    Raises:
        TypeError: If the value has another dtype.
        ValueError: If `op` is another operation, or the value has no rows.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> hvd.reducescatter([1.0, 2.0]).numpy().tolist()
        [1.0, 2.0]
    """
    tensor = tf.convert_to_tensor(value)
    if op not in (native.Average, native.Sum) or tensor.shape.rank == 0:
        raise ValueError(
            "reducescatter needs a value with rows, and op=Average or op=Sum. "
            f"Received: the shape {tensor.shape} and op={op!r}. Use allreduce."
        )
    reduced = native.reducescatter(_to_reduce(tensor), name=name, op=op, **options)
    return tf.cast(reduced, tensor.dtype)


def _to_reduce(tensor: Any) -> Any:
    """Convert a tensor to a dtype that Horovod can reduce without losing values."""
    dtype = tensor.dtype
    if not (dtype.is_floating or dtype.is_integer) or dtype == tf.uint64:
        raise TypeError(
            "value must be of floats, or of integers below 2**63. Received: a value of "
            f"{dtype.name}. Cast it first, for example to int32 or float32."
        )
    return without_bfloat16(to_reduce(tensor, "sum"))
