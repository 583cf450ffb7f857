"""The learning rate of a model as callbacks change it: a base, times what each asks."""

from typing import Any

import keras

from tfdist.callbacks.velocities import correct_velocities
from tfdist.compat.keras.learning_rates import leaf_optimizers, multiply_schedule

# Where an optimizer keeps them. Keras does not look there, so files do not change.
_ATTRIBUTE = "_rates_of_tfdist"


def rates_of(model: keras.Model) -> "Rates":
    """Return what is known of the learning rates of a model.

    It stays with the optimizer, so that another `fit` begins where this one has ended.

    Args:
        model: A compiled model.
    """
    kept = vars(model.optimizer)
    if _ATTRIBUTE not in kept:
        kept[_ATTRIBUTE] = Rates(model)
    rates: Rates = kept[_ATTRIBUTE]
    return rates


def current_rate(model: keras.Model) -> float:
    """Return the learning rate of the next step; of several, that of the first.

    Args:
        model: A compiled model.
    """
    rate = leaf_optimizers(model.optimizer)[0].learning_rate
    return float(keras.ops.convert_to_numpy(rate))


class Rates:
    """The learning rates of an optimizer, and of those inside of it.

    Each is a product: of the rate that the optimizer was made with, of what it was
    scaled by, and of the multiplier that belongs to the step. A callback sets one of
    the factors, so it does not matter which comes first.

    Args:
        model: The model of the optimizer.
    """

    def __init__(self, model: keras.Model) -> None:
        # None: nobody has scaled it.
        self.scale: float | None = None
        self._multiplier = 1.0
        self._steps_before = int(model.optimizer.iterations.numpy())
        self._rates = [_rate_of(one, model) for one in leaf_optimizers(model.optimizer)]

    @property
    def may_be_scaled_already(self) -> bool:
        """Say whether the optimizer had made steps when nobody knew of its rate.

        What a schedule gives is the same in every file.
        """
        has_numbers = any(isinstance(rate, _Number) for rate in self._rates)
        return has_numbers and self.scale is None and self._steps_before > 0

    def begin(self, initial_learning_rate: float | None = None) -> None:
        """Take what the rates are at the beginning of a `fit`.

        What was set meanwhile, by hand or by another callback, counts as scaled if the
        rate was scaled.

        Args:
            initial_learning_rate: The rate before all factors. Default None: what the
                optimizer has, without the factors.
        """
        for rate in self._rates:
            rate.begin(self._product, initial_learning_rate)

    def set_scale(self, scale: float, *, momentum_correction: bool = True) -> None:
        """Set what the rates are scaled by, instead of what they were.

        Args:
            scale: The factor.
            momentum_correction: See `set_multiplier`.
        """
        self.scale = scale
        self._set(momentum_correction)

    def set_multiplier(self, multiplier: float, *, momentum_correction: bool) -> None:
        """Set the multiplier of the steps that follow.

        The velocity of SGD, RMSprop and Lars is a sum of gradients, each multiplied by
        the learning rate of its step. With momentum correction it is multiplied by
        the new rate over the old one, as if all of them had been made with the new one
        (Goyal et al. 2017, section 3). Where momentum is a variable one would multiply
        it instead, for one step; in Keras 3 it is a constant of the compiled step.

        Args:
            multiplier: The multiplier.
            momentum_correction: Whether to correct the velocity.
        """
        self._multiplier = multiplier
        self._set(momentum_correction)

    @property
    def _product(self) -> float:
        """What the rate that the optimizer was made with is multiplied by."""
        return self._multiplier * (1.0 if self.scale is None else self.scale)

    def _set(self, momentum_correction: bool) -> None:
        """Bring the optimizers to the product."""
        for rate in self._rates:
            ratio = rate.set(self._product)
            if momentum_correction and ratio != 1.0:
                correct_velocities(rate.optimizer, ratio)


class _Number:
    """A learning rate that is a variable.

    Args:
        optimizer: Its optimizer.
        model: The model.
    """

    def __init__(self, optimizer: Any, model: keras.Model) -> None:
        self.optimizer = optimizer
        self._variable = optimizer.learning_rate
        self._base = self._last = self.current

    @property
    def current(self) -> float:
        """The learning rate of the next step."""
        return float(self._variable.numpy())

    def begin(self, product: float, initial: float | None) -> None:
        """Find the base in what somebody may have set."""
        if initial is not None:
            self._base = initial
        elif product and self.current != self._last:
            self._base = self.current / product

    def set(self, product: float) -> float:
        """Set the rate; return how many times the old one it is, 1 if that was 0."""
        old = self.current
        self._variable.assign(self._base * product)
        self._last = self.current
        return self._last / old if old else 1.0


class _Schedule:
    """A learning rate that a schedule gives, which is multiplied by a variable.

    Args:
        optimizer: Its optimizer.
        model: The model.
    """

    def __init__(self, optimizer: Any, model: keras.Model) -> None:
        self.optimizer = optimizer
        with model.distribute_strategy.scope():
            self._multiplier = keras.Variable(
                1.0, trainable=False, name="learning_rate_multiplier"
            )
        multiply_schedule(optimizer, self._multiplier)
        # A step that was traced before knows nothing of it.
        model.make_train_function(force=True)

    def begin(self, product: float, initial: float | None) -> None:
        """Refuse another base than the schedule."""
        if initial is not None:
            raise ValueError(
                "initial_learning_rate is for optimizers whose learning rate is a "
                f"number. Received: initial_learning_rate={initial} and a schedule of "
                "Keras, which is multiplied as it is. Leave it out."
            )

    def set(self, product: float) -> float:
        """Set the multiplier; return how many times the old one it is, 1 if none."""
        old = float(self._multiplier.numpy())
        self._multiplier.assign(product)
        return product / old if old else 1.0


def _rate_of(optimizer: Any, model: keras.Model) -> "_Number | _Schedule":
    """Return the learning rate of one optimizer."""
    is_number = isinstance(optimizer.learning_rate, keras.Variable)
    return _Number(optimizer, model) if is_number else _Schedule(optimizer, model)
