"""What optimizers of ours need of Keras's base class, and it does not publish."""

from collections.abc import Sequence
from typing import Any

import keras


class OwnDecayOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """An optimizer whose weight decay is a part of its update, and not Keras's own."""

    def index_of(self, variable: Any) -> int:
        """Return the number of a variable among those that the optimizer was built for.

        Args:
            variable: The variable.
        """
        index: int = self._get_variable_index(variable)
        return index

    def is_decayed(self, variable: Any) -> bool:
        """Say whether `exclude_from_weight_decay` leaves a variable in.

        Args:
            variable: The variable.
        """
        return bool(self._use_weight_decay(variable))

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Leave out Keras's weight decay, which is apart from the gradient."""
