"""The counters that loss scaling has beyond Keras's."""

from typing import Any

import keras


class Counters(keras.layers.Layer):  # type: ignore[misc]
    """Holds two counters, in a place of their own in files.

    Keras saves the variables of an optimizer as one numbered list, and loads no list of
    another length. Beside that list, and not in it, the counters let Keras's own
    `LossScaleOptimizer` load what ours has saved, and the reverse. A layer is what
    Keras saves in such a place; this one belongs to no model.
    """

    def __init__(self) -> None:
        super().__init__(name="loss_scale_counters")
        self.overflow_counter = self._counter("overflow_counter")
        self.skipped_steps = self._counter("skipped_steps")
        self.built = True

    def load_own_variables(self, store: Any) -> None:
        """Load the counters; a file of plain Keras has none, and leaves them.

        Args:
            store: Where from.
        """
        if store.keys():
            super().load_own_variables(store)

    def _counter(self, name: str) -> Any:
        """Make a variable that counts from 0."""
        return self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, name=name
        )
