"""Sums in the order of one binary tree, whatever the number of processes."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.gradients.reducer import GradientReducer


class TreeReducer(GradientReducer):
    """A sum over ranks, a power of two of them, in pairs of neighbours."""

    def _sum(self, tensors: list[Any], name: str) -> list[Any]:
        """Sum tensors in one message."""
        size = self._collective.size
        if size <= 2:
            # Two numbers have one sum, in whatever order.
            return super()._sum(tensors, name)
        lengths = [tensor.shape.num_elements() for tensor in tensors]
        # One more than is needed, since no engine need send an empty tensor then.
        row = sum(lengths) // size + 1
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        padded = tf.pad(flat, [[0, size * row - sum(lengths)]])
        # Each rank adds up one part of the elements, so that as many bytes are sent as
        # by a ring.
        sums = self._collective.all_to_all(tf.reshape(padded, [size, row]), name=name)
        while size > 1:
            # Slices between the additions, which TensorFlow would otherwise reorder.
            sums, size = sums[0::2] + sums[1::2], size // 2
        whole = self._collective.all_gather(sums, name=f"{name}/sums")
        parts = tf.split(tf.reshape(whole, [-1])[: sum(lengths)], lengths)
        return [
            tf.reshape(part, tensor.shape)
            for part, tensor in zip(parts, tensors, strict=True)
        ]


def sum_parts(
    part: Callable[[Any], Sequence[Any]], levels: int, first: Any, like: Sequence[Any]
) -> list[Any]:
    """Return the sums of what `part` returns for `2**levels` numbers from `first`.

    `like` are variables of the shapes and types of the results. One part is computed
    after the other, and each level of the tree keeps one set of sums.
    """
    # Each sum has a loop of its own, and so has each part: TensorFlow would reorder
    # sums beside each other, and optimizes a part alike only if it is always in a loop.
    count = 2 if levels else 1

    def add(number: Any, *sums: Any) -> list[Any]:
        if not levels:
            return [number + 1, *part(first)]
        start = first + number * 2 ** (levels - 1)
        values = sum_parts(part, levels - 1, start, like)
        added = tf.cond(
            number > 0,
            lambda: [a + b for a, b in zip(sums, values, strict=True)],
            lambda: [tf.identity(value) for value in values],
        )
        return [number + 1, *added]

    nothing = [tf.zeros([], variable.dtype) for variable in like]
    _, *sums = tf.while_loop(
        lambda number, *_: number < count,
        add,
        [tf.constant(0, tf.int64), *nothing],
        [tf.TensorShape([]), *(tf.TensorShape(None) for _ in like)],
        parallel_iterations=1,
    )
    return [
        tf.ensure_shape(total, variable.shape)
        for total, variable in zip(sums, like, strict=True)
    ]
