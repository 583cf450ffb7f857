"""The learning rate of one optimizer as callbacks change it: a base, times factors."""

from typing import Any

import keras

from tfdist.compat.keras.learning_rates import multiply_schedule

# Where an optimizer keeps its own. Keras does not look there, so files do not change.
_ATTRIBUTE = "_rate_of_tfdist"


def rate_of(optimizer: Any, model: keras.Model) -> "Rate":
    """Return what an optimizer keeps of its learning rate; it begins to, if need be.

    Args:
        optimizer: One that holds a learning rate of its own.
        model: The model that it updates.
    """
    kept = kept_rate_of(optimizer)
    is_number = isinstance(optimizer.learning_rate, keras.Variable)
    if kept is None or isinstance(kept, NumberRate) != is_number:
        kept = NumberRate(optimizer) if is_number else ScheduleRate(optimizer, model)
        vars(optimizer)[_ATTRIBUTE] = kept
    return kept


def kept_rate_of(optimizer: Any) -> "Rate | None":
    """Return what an optimizer keeps of its learning rate, None if it does not.

    Args:
        optimizer: One that holds a learning rate of its own.
    """
    kept: Rate | None = vars(optimizer).get(_ATTRIBUTE)
    return kept


class Rate:
    """The learning rate of one optimizer.

    Args:
        optimizer: The optimizer.
    """

    # The rate before all factors; whether it is that.
    base: float
    is_known = True
    # What another process needs to go on.
    _lasting: tuple[str, ...] = ("base", "scale", "multiplier", "steps_before")

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.scale: float | None = None
        self.multiplier = 1.0
        self.steps_before = int(optimizer.iterations.numpy())

    @property
    def current(self) -> float:
        """The learning rate of the next step."""
        return current_of(self.optimizer)

    @property
    def product(self) -> float:
        """What the base is multiplied by."""
        return self.multiplier * (1.0 if self.scale is None else self.scale)

    def state(self) -> dict[str, Any]:
        """Return what another process needs to go on, as JSON can hold it."""
        return {name: getattr(self, name) for name in self._lasting}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where another process has left off.

        Args:
            state: As `state` has returned it.
        """
        for name in self._lasting:
            setattr(self, name, state[name])

    def begin(self) -> None:
        """Take what the rate is at the beginning of a `fit`."""

    def fold(self) -> None:
        """Keep what others have made of the rate."""

    def apply(self) -> float:
        """Bring the optimizer to it; return the new rate over the old, or 1."""
        raise NotImplementedError


class NumberRate(Rate):
    """A learning rate that is a variable."""

    _lasting = (*Rate._lasting, "is_known", "_last")

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self.base = self._last = self.current
        self.is_known = self.steps_before == 0

    def begin(self) -> None:
        """Take a rate that somebody has set between two trainings: it is scaled."""
        if self.current != self._last:
            self.base = self.current / (1.0 if self.scale is None else self.scale)
            self.multiplier = 1.0
            self._last = self.current

    def fold(self) -> None:
        """Keep by how much others have changed the rate, as ReduceLROnPlateau does."""
        if self.current != self._last and self._last:
            self.base *= self.current / self._last
        self._last = self.current

    def apply(self) -> float:
        """Set the variable."""
        old = self.current
        self.optimizer.learning_rate.assign(self.base * self.product)
        self._last = self.current
        return self._last / old if old else 1.0


class ScheduleRate(Rate):
    """A learning rate that a schedule gives, which is multiplied by a variable.

    Args:
        optimizer: The optimizer.
        model: The model.
    """

    base = 1.0

    def __init__(self, optimizer: Any, model: keras.Model) -> None:
        super().__init__(optimizer)
        with model.distribute_strategy.scope():
            self._variable = keras.Variable(
                1.0, trainable=False, name="learning_rate_multiplier"
            )
        multiply_schedule(optimizer, self._variable)
        # A step that was traced before knows nothing of it.
        model.make_train_function(force=True)

    def apply(self) -> float:
        """Set the variable."""
        old = float(self._variable.numpy())
        self._variable.assign(self.product)
        return self.product / old if old else 1.0

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where another process has left off."""
        super().set_state(state)
        self._variable.assign(self.product)


def current_of(optimizer: Any) -> float:
    """Return the learning rate of the next step of an optimizer.

    Args:
        optimizer: One that holds a learning rate of its own.
    """
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))
