"""What the servers do: updates from what workers have left, one at a time and whole."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.keras.sharded_optimizer import given_to
from tfdist.compat.keras.shards import shards_of
from tfdist.strategies.parameter_server.slots import Taken
from tfdist.strategies.parameter_server.step import PureStep

# Updates that came later than this count as this late in the histogram.
LONGEST_STALENESS = 1024


class Update:
    """Applies what lies in slots: the optimizer's whole update, and all that moves.

    It runs on the servers alone. Only one hand calls it, so every optimizer reads and
    writes what it keeps without anybody in between.

    Args:
        strategy: The strategy.
        step: What has filled the slots.
    """

    def __init__(self, strategy: Any, step: PureStep) -> None:
        self.step = step
        self._strategy = strategy
        self._functions: dict[tuple[int, ...], Any] = {}
        self._reader: Callable[[], dict[str, Any]] | None = None
        self._free: list[list[tf.Variable]] = []

    def read_logs(self) -> dict[str, Any]:
        """Return the numbers of the steps, as `train_step` returns them."""
        if self._reader is None:
            self._reader = self._strategy.extended.reader_of(self.step)
        return self._reader()

    def take_slot(self) -> list[tf.Variable]:
        """Return the variables of a slot that nobody else has."""
        # Workers begin on threads of their own, so there is no time to look first.
        try:
            return self._free.pop()
        except IndexError:
            return self.step.layout.make()

    def give_back(self, slots: Sequence[list[tf.Variable]]) -> None:
        """Let slots be used again, when nobody will write to them any more.

        Args:
            slots: The slots.
        """
        self._free += slots

    def __call__(self, groups: Sequence[Sequence[list[tf.Variable]]]) -> None:
        """Apply groups of slots in order, each as one update.

        Args:
            groups: The slots of each update, which weigh as much as they have rows.
        """
        sizes = tuple(len(group) for group in groups)
        handles = [[[v.handle for v in slot] for slot in group] for group in groups]
        with tf.device(self._strategy.extended.server_of_state):
            if sizes not in self._functions:
                function = tf.function(self._apply_all, autograph=False)
                self._functions[sizes] = function.get_concrete_function(handles)
            self._functions[sizes](handles)

    def _apply_all(self, groups: Any) -> None:
        """Apply groups of slots in order."""
        last: list[tf.Operation] = []
        for group in groups:
            graph = tf.compat.v1.get_default_graph()
            known = len(graph.get_operations())
            place = tf.compat.v1.device(_beside_inputs)
            with place, tf.control_dependencies(last):
                taken = [self.step.layout.read(slot) for slot in group]
                self._strategy.run(self._apply, args=(taken,))
            made = graph.get_operations()[known:]
            last = [op for op in made if op.op_def.is_stateful]
            if self.step.optimizer is not None:
                # Whoever reads this version reads weights with the update in them.
                with tf.control_dependencies(last):
                    self._strategy.extended.count(taken[0].version)

    def _apply(self, taken: list[Taken]) -> None:
        """Apply one update."""
        rows = tf.stack([one.rows for one in taken])
        shares = tf.cast(rows / tf.reduce_sum(rows), tf.float64)
        gradients = [
            _weighed(each, shares)
            for each in zip(*(one.gradients for one in taken), strict=True)
        ]
        optimizer = self.step.optimizer
        if optimizer is not None:
            rest = iter(gradients)
            wholes = [
                (v, [next(rest) for _ in shards_of(v)] if has else None)
                for v, has in zip(
                    self.step.variables, self.step.has_gradient, strict=True
                )
            ]
            optimizer.apply(*given_to(optimizer, wholes))
        for i, moved in enumerate(self.step.moved):
            moves = [one.moves[i] for one in taken]
            if moved.is_metric:
                move = tf.add_n(moves) if len(moves) > 1 else moves[0]
            elif moves[0].dtype.is_floating:
                move = _weighed(moves, shares)
            else:
                move = moves[0]
            raw = moved.variable._value
            with tf.device(raw.device):
                if moved.kept == 1.0:
                    raw.assign_add(move)
                else:
                    raw.assign(raw * tf.cast(moved.kept, raw.dtype) + move)
        if self.step.returned.count:
            logs = _weighed([one.logs for one in taken], shares)
            self.step.last_numbers.assign(logs)


def _beside_inputs(operation: tf.Operation) -> str:
    """Return where an operation is to be: where that is which it is computed from.

    Else it would be on the server that the update is called on, and what lies on others
    would be moved there.
    """
    devices = [one.device for one in operation.inputs if one.shape.rank != 0]
    return operation.device or next(filter(None, devices), "")


def _weighed(values: Sequence[Any], shares: tf.Tensor) -> Any:
    """Return the sum of values, weighed, in their order."""
    if len(values) == 1:
        return values[0]
    weighed = [
        value * tf.cast(shares[i], value.dtype)
        if isinstance(value, tf.Tensor)
        else tf.IndexedSlices(
            value.values * tf.cast(shares[i], value.values.dtype),
            value.indices,
            value.dense_shape,
        )
        for i, value in enumerate(values)
    ]
    if isinstance(weighed[0], tf.Tensor):
        return tf.add_n(weighed)
    return tf.IndexedSlices(
        tf.concat([one.values for one in weighed], 0),
        tf.concat([one.indices for one in weighed], 0),
        weighed[0].dense_shape,
    )
