"""Large tensors in parts: several on their way at once, and never too many."""

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Rings that run side by side fill the gaps in which one of them waits for its peer.
# Each holds several copies of its part on the way, so both numbers bound the memory
# that communication takes.
PART_BYTES = 2 * 2**20
PARTS_AT_ONCE = 4
_ALIGNED = 64


class Parts:
    """Cuts flat tensors and sends the parts in the order in which graphs name them."""

    def __init__(self) -> None:
        # Names, because an operation would keep its graph alive.
        self._on_the_way: weakref.WeakKeyDictionary[Any, deque[str]] = (
            weakref.WeakKeyDictionary()
        )

    def run(self, flat: Any, send: Callable[[Any, str], Any]) -> list[Any]:
        """Send a tensor.

        Args:
            flat: Of shape (elements,), of known size and at least one element.
            send: Sends a part, given it and what to add to its name.

        Returns:
            The results, by part.
        """
        elements = flat.shape.num_elements()
        count = -(-elements * flat.dtype.size // PART_BYTES)
        if count == 1:
            return [self._in_turn(flat, "", send)]
        # TensorFlow copies a slice unless it begins where memory is aligned.
        starts = [elements * i // count // _ALIGNED * _ALIGNED for i in range(count)]
        return [
            self._in_turn(tf.slice(flat, [start], [stop - start]), f" part {i}", send)
            for i, (start, stop) in enumerate(
                zip(starts, [*starts[1:], elements], strict=True)
            )
        ]

    def _in_turn(self, part: Any, name: str, send: Callable[[Any, str], Any]) -> Any:
        """Send a part; in a graph, once few enough of those before it are left."""
        if tf.executing_eagerly():
            return send(part, name)
        graph = tf.compat.v1.get_default_graph()
        before = self._on_the_way.setdefault(graph, deque(maxlen=PARTS_AT_ONCE))
        is_full = len(before) == PARTS_AT_ONCE
        wait_for = [graph.get_operation_by_name(before[0])] if is_full else []
        with tf.control_dependencies(wait_for):
            result = send(part, name)
        before.append(result.op.name)
        return result
