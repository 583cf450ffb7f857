"""What a tensor in a graph was computed from."""

from collections.abc import Collection
from typing import Any

import tensorflow as tf

# Operations with effects that only read variables.
_READ = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")


def needs_data(value: Any, varying: Collection[int] = ()) -> bool:
    """Return whether a tensor depends on data or random numbers, or may.

    Lengths of rows count as constants, the number of rows as data. So do variables
    whose handle has its id in `varying`.
    """
    if not tf.is_symbolic_tensor(value):
        # Eager code may have read it from data.
        return True
    pending, seen = [value], set[Any]()
    while pending:
        tensor = pending.pop()
        if id(tensor) in varying:
            return True
        if not tf.is_symbolic_tensor(tensor) or tensor.ref() in seen:
            # A graph has captured a constant, or a variable.
            continue
        seen.add(tensor.ref())
        op = tensor.op
        if op.type in ("Placeholder", "PlaceholderWithDefault"):
            outer = _captured(tensor)
            if outer is None:
                return True
            pending.append(outer)
        elif _is_source(op):
            return True
        elif not _is_length_of_rows(op):
            pending += op.inputs
    return False


def _is_source(op: Any) -> bool:
    """Return whether an op may give other numbers from the same inputs."""
    if op.op_def.is_stateful:
        return op.type not in _READ
    return not op.inputs and op.type != "Const"


def _captured(placeholder: Any) -> Any:
    """Return the tensor that a placeholder of a function stands for, if any."""
    captures = getattr(placeholder.graph, "captures", ())
    return next((outer for outer, inner in captures if inner is placeholder), None)


def _is_length_of_rows(op: Any) -> bool:
    """Return whether an op takes a length other than the first from a shape."""
    if op.type != "StridedSlice" or op.inputs[0].op.type != "Shape":
        return False
    begin = tf.get_static_value(op.inputs[1])
    rank = op.inputs[0].shape[0]
    is_one = op.get_attr("shrink_axis_mask") == 1 and rank is not None
    return bool(is_one and begin is not None and begin[0] % rank != 0)
