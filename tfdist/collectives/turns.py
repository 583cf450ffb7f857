"""Not too many collectives of a graph on their way at once."""

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Two, so that one passes its data on while the other adds up; each holds several
# copies of its data on the way, which is the memory that communication takes.
AT_ONCE = 2


class Turns:
    """Runs the ops of a graph in the order of their tracing, a few at once.

    The gradients of the last layers, which are traced first, so go first.
    """

    def __init__(self) -> None:
        # Names, because an operation would keep its graph alive.
        self._on_the_way: weakref.WeakKeyDictionary[Any, deque[str]] = (
            weakref.WeakKeyDictionary()
        )

    def take(self, op: Callable[[], Any]) -> Any:
        """Put an op into the graph, after enough of those before it.

        Args:
            op: Makes the op, and returns its one output.

        Returns:
            The output.
        """
        graph = tf.compat.v1.get_default_graph()
        before = self._on_the_way.setdefault(graph, deque(maxlen=AT_ONCE))
        is_full = len(before) == AT_ONCE
        wait_for = [graph.get_operation_by_name(before[0])] if is_full else []
        with tf.control_dependencies(wait_for):
            output = op()
        before.append(output.op.name)
        return output
