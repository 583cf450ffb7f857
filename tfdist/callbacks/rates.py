"""The learning rates of a model as callbacks change them: a base, times factors."""

from collections.abc import Sequence
from typing import Any

import keras

from tfdist.callbacks.rate import NumberRate, current_of, kept_rate_of, rate_of
from tfdist.callbacks.velocities import correct_velocities
from tfdist.compat.keras.learning_rates import leaf_optimizers, optimizers_of


def current_rate(model: keras.Model) -> float:
    """Return the learning rate of the next step; of several, that of the first.

    Args:
        model: A compiled model.
    """
    return current_of(leaf_optimizers(model.optimizer)[0])


def state_of_rates(model: keras.Model) -> list[Any]:
    """Return what another process needs to go on with the learning rates of a model.

    Args:
        model: A compiled model.

    Returns:
        What each optimizer keeps, as JSON can hold it; None for one that keeps nothing.
    """
    kept = [kept_rate_of(leaf) for leaf in _leaves(model)]
    return [None if rate is None else rate.state() for rate in kept]


def set_state_of_rates(model: keras.Model, state: list[Any]) -> None:
    """Go on with the learning rates where another process has left off.

    Args:
        model: A compiled model, whose variables are those of then.
        state: As `state_of_rates` returned it.
    """
    for leaf, kept in zip(_leaves(model), state, strict=True):
        if kept is not None:
            rate_of(leaf, model).set_state(kept)


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
        self._rates = [rate_of(leaf, model) for leaf in _leaves(model)]
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
        numbers = [rate for rate in self._rates if isinstance(rate, NumberRate)]
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


def _leaves(model: keras.Model) -> list[Any]:
    """Return the optimizers of a model that hold a learning rate of their own."""
    return [
        leaf
        for optimizer in optimizers_of(model)
        for leaf in leaf_optimizers(optimizer)
    ]
