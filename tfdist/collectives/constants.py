"""Tensors of a graph that TensorFlow may compute once and for all, while it traces.

It does so for what depends on constants only and has no side effects, as Horovod's
operations are said to have none. A rank that traces again would then take part in an
operation that the others no longer run.
"""

from typing import Any

import tensorflow as tf

from tfdist.compat.tensorflow import run_independently


def unlike_a_constant(tensor: Any) -> Any:
    """Return a tensor of the graph that nobody takes for a constant.

    Args:
        tensor: A tensor of the graph that is being built.

    Returns:
        The tensor, if it depends on data or variables; its identity otherwise, by an
        operation that is said to have side effects and writes to no place.
    """
    if not may_be_constant(tensor):
        return tensor
    tensor = tf.raw_ops.DebugIdentityV2(input=tensor, debug_urls=[])
    run_independently(tensor.op)
    return tensor


def may_be_constant(tensor: Any) -> bool:
    """Say whether a tensor of a graph may depend on constants only.

    Args:
        tensor: A tensor of a graph.

    Returns:
        False if it comes from an operation with side effects, such as the reading of
        variables and of data; an argument may be a constant of whoever calls.
    """
    operations, seen = [tensor.op], set()
    while operations:
        operation = operations.pop()
        if operation in seen:
            continue
        seen.add(operation)
        if operation.op_def.is_stateful:
            return False
        outer = _captured(operation)
        if tf.is_symbolic_tensor(outer):
            operations.append(outer.op)
        elif outer is not None:
            return False  # What eager code has is handed over at each call.
        operations += [each.op for each in operation.inputs]
    return True


def _captured(operation: Any) -> Any:
    """Return what a placeholder stands for in the graph around its own, if anything."""
    if operation.type != "Placeholder":
        return None
    name = operation.name
    captures = getattr(operation.graph, "captures", ())
    return next((outer for outer, inner in captures if inner.op.name == name), None)
