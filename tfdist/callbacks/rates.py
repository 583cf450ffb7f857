"""The learning rates of a model as callbacks change them: a base, times factors."""

from collections.abc import Sequence
from typing import Any

import keras

from tfdist.callbacks.velocities import correct_velocities
from tfdist.compat.keras.learning_rates import (
    leaf_optimizers,
    multiply_schedule,
    optimizers_of,
)

# Where an optimizer keeps its own. Keras does not look there, so files do not change.
_ATTRIBUTE = "_rate_of_tfdist"


def current_rate(model: keras.Model) -> float:
    """Return the learning rate of the next step; of several, that of the first.

    Args:
        model: A compiled model.
    """
    return _current(leaf_optimizers(model.optimizer)[0])


class Rates:
    """The learning rates of the optimizers of a model, and of those inside of them.

    Each is a product: of the rate that the optimizer was made with, of what it was
    scaled by, and of the multiplier that belongs to the step. A callback sets one of
    the factors, so it does not matter which comes first. They stay with the optimizer,
    so that another `fit` begins where this one has ended.

    Args:
        model: A compiled model.
        who: The callback that asks, for errors.
        initial: The rate before all factors, or one for each optimizer that has a
            number. Default None: what the optimizer has, without the factors.

    Raises:
        ValueError: If there are other numbers of initial rates than of optimizers.
    """

    def __init__(
        self,
        model: keras.Model,
        who: str,
        initial: float | Sequence[float] | None = None,
    ) -> None:
        self._who = who
        leaves = [
            leaf
            for optimizer in optimizers_of(model)
            for leaf in leaf_optimizers(optimizer)
        ]
        self._rates = [_rate_of(leaf, model) for leaf in leaves]
        for rate in self._rates:
            rate.begin()
        if initial is not None:
            self._take(initial)

    @property
    def scale(self) -> float | None:
        """What the rates are scaled by; None if nobody has scaled them."""
        return self._rates[0].scale

    def facts(self) -> list[Any]:
        """Return what must be equal on all ranks, as JSON can hold it."""
        return [[rate.base, rate.scale, rate.multiplier] for rate in self._rates]

    def set_scale(self, scale: float) -> None:
        """Set what the rates are scaled by, instead of what they were.

        Args:
            scale: The factor.
        """
        self._set(scale=scale, momentum_correction=True)

    def set_multiplier(self, multiplier: float, *, momentum_correction: bool) -> None:
        """Set the multiplier of the steps that follow.

        The velocity of SGD, RMSprop and Lars is a sum of gradients, each multiplied by
        the learning rate of its step. With momentum correction it is multiplied by the
        new rate over the old one, as if all of them had been made with the new one
        (Goyal et al. 2017, section 3). Where momentum is a variable one would multiply
        it instead, for one step; in Keras 3 it is a constant of the compiled step.

        Args:
            multiplier: The multiplier.
            momentum_correction: Whether to correct the velocity.
        """
        self._set(multiplier=multiplier, momentum_correction=momentum_correction)

    def end(self) -> None:
        """Keep what others have changed since the last step that was set."""
        for rate in self._rates:
            rate.fold()

    def _take(self, initial: float | Sequence[float]) -> None:
        """Take rates that the user has given as those before all factors."""
        numbers = [rate for rate in self._rates if isinstance(rate, _Number)]
        given = [initial] if isinstance(initial, int | float) else list(initial)
        if len(given) != len(numbers):
            raise ValueError(
                "initial_learning_rate must be a number for each optimizer whose "
                f"learning rate is one. Received: {len(given)} for {len(numbers)} of "
                f"them ({[type(rate.optimizer).__name__ for rate in numbers]}); "
                "schedules of Keras are multiplied as they are. Give as many."
            )
        for rate, base in zip(numbers, given, strict=True):
            rate.base, rate.is_known = float(base), True

    def _set(self, *, momentum_correction: bool, **factors: float) -> None:
        """Set a factor of all rates."""
        for rate in self._rates:
            if not rate.is_known:
                raise ValueError(
                    f"{self._who} cannot tell which learning rate to begin from: the "
                    "one of an optimizer that has made steps may be scaled or decayed "
                    f"already. Received: {type(rate.optimizer).__name__} with the rate "
                    f"{rate.current:g} after {rate.steps_before} steps. Give the rate "
                    "before all factors to LearningRateScale, with rule 'none' if it "
                    "is not to be scaled: LearningRateScale('none', "
                    f"initial_learning_rate={rate.current:g})."
                )
            rate.fold()
            for name, factor in factors.items():
                setattr(rate, name, factor)
            ratio = rate.apply()
            if momentum_correction and ratio != 1.0:
                correct_velocities(rate.optimizer, ratio)


class _Rate:
    """The learning rate of one optimizer.

    Args:
        optimizer: The optimizer.
    """

    # The rate before all factors; whether it is that.
    base: float
    is_known = True

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.scale: float | None = None
        self.multiplier = 1.0
        self.steps_before = int(optimizer.iterations.numpy())

    @property
    def current(self) -> float:
        """The learning rate of the next step."""
        return _current(self.optimizer)

    @property
    def product(self) -> float:
        """What the base is multiplied by."""
        return self.multiplier * (1.0 if self.scale is None else self.scale)

    def begin(self) -> None:
        """Take what the rate is at the beginning of a `fit`."""

    def fold(self) -> None:
        """Keep what others have made of the rate."""

    def apply(self) -> float:
        """Bring the optimizer to it; return the new rate over the old, or 1."""
        raise NotImplementedError


class _Number(_Rate):
    """A learning rate that is a variable."""

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


class _Schedule(_Rate):
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


def _rate_of(optimizer: Any, model: keras.Model) -> _Rate:
    """Return what an optimizer keeps of its learning rate."""
    kept = vars(optimizer)
    is_number = isinstance(optimizer.learning_rate, keras.Variable)
    if _ATTRIBUTE not in kept or isinstance(kept[_ATTRIBUTE], _Number) != is_number:
        made = _Number(optimizer) if is_number else _Schedule(optimizer, model)
        kept[_ATTRIBUTE] = made
    rate: _Rate = kept[_ATTRIBUTE]
    return rate


def _current(optimizer: Any) -> float:
    """Return the learning rate of the next step of an optimizer."""
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))
