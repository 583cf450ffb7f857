"""Learning rates of a model's optimizers: a base rate times factors."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.callbacks.ranks import EpochLine, collective_of
from tfdist.compat.keras.callbacks import SetsRate
from tfdist.compat.keras.learning_rates import (
    leaf_optimizers,
    leaves_of,
    multiply_schedule,
)
from tfdist.compat.mirrored import copies_here
from tfdist.compat.owned_variables import is_elsewhere

# The attribute that holds an optimizer's `Rate`; Keras neither reads nor saves it.
_ATTRIBUTE = "_rate_of_tfdist"


class RateCallback(SetsRate, EpochLine):
    """Base of callbacks that set the learning rate, equally on all ranks."""

    # The rate is the product of the optimizer's initial rate, a scale and a multiplier,
    # which stay with the optimizer. Each callback sets one of them, in any order.
    def __init__(
        self, initial_learning_rate: float | Sequence[float] | None = None
    ) -> None:
        super().__init__()
        _check_initial(initial_learning_rate)
        self.initial_learning_rate = initial_learning_rate
        # The rates of the model's optimizers, set in the first epoch.
        self._rates: list[Rate] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Discard the rates of an earlier `fit`."""
        super().on_train_begin(logs)
        self._rates = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Read the rates in the first epoch, when all ranks have restored theirs."""
        super().on_epoch_begin(epoch, logs)
        if self._rates:
            return
        self._rates = [_rate_of(leaf, self.model) for leaf in leaves_of(self.model)]
        for rate in self._rates:
            rate.begin()
        if self.initial_learning_rate is not None:
            self._set_initial(self.initial_learning_rate)
        self._check_equal()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keep what other callbacks did to the rate since the last step."""
        super().on_train_end(logs)
        for rate in self._rates:
            rate.fold()

    def _set_factor(
        self, *, momentum_correction: bool = True, **factors: float
    ) -> None:
        """Set the `scale` or the `multiplier` of all rates."""
        for rate in self._rates:
            if not rate.is_known:
                raise ValueError(
                    f"{type(self).__name__} cannot tell which learning rate to begin "
                    "from: the rate of an optimizer that has made steps may be scaled "
                    f"or decayed already. Received: {type(rate.optimizer).__name__} "
                    f"with the rate {rate.current:g} after {rate.steps_before} steps. "
                    "Give the rate before all factors to LearningRateScale, with rule "
                    "'none' to leave it unscaled: LearningRateScale('none', "
                    f"initial_learning_rate={rate.current:g})."
                )
            rate.fold()
            for name, factor in factors.items():
                setattr(rate, name, factor)
            ratio = rate.apply()
            # Momentum contains earlier rates (Goyal et al. 2017, section 3). Correct
            # the sum, as the coefficient is a constant in Keras 3.
            if momentum_correction and ratio != 1.0:
                correct_momentum(rate.optimizer, ratio)

    def _set_initial(self, initial: float | Sequence[float]) -> None:
        """Use the user's rates as the base rates."""
        numbers = [rate for rate in self._rates if rate.is_number]
        given = [initial] if isinstance(initial, int | float) else list(initial)
        if len(given) != len(numbers):
            raise ValueError(
                "initial_learning_rate must hold one number for each optimizer whose "
                f"learning rate is a number. Received: {len(given)} for {len(numbers)} "
                f"optimizers ({[type(rate.optimizer).__name__ for rate in numbers]}). "
                "Give one for each; schedules of Keras are multiplied as they are."
            )
        for rate, base in zip(numbers, given, strict=True):
            rate.base, rate.is_known = float(base), True

    def _check_equal(self) -> None:
        """Refuse ranks with different rates."""
        name = type(self).__name__
        facts = [[rate.base, rate.scale, rate.multiplier] for rate in self._rates]
        by_rank = collective_of(self.model).exchange(f"the rates of {name}", facts)
        if any(other != facts for other in by_rank):
            raise RuntimeError(
                f"{name} needs the same learning rates on every rank. Received: "
                f"{by_rank}, by rank: the base, the scale and the multiplier of each "
                "optimizer. Compile with the same optimizer and give the same "
                "callbacks to fit on every rank."
            )


class Rate:
    """The learning rate of one optimizer, which holds this object."""

    def __init__(self, optimizer: Any, model: keras.Model) -> None:
        self.optimizer = optimizer
        self.is_number = _is_number(optimizer)
        # The learning rate, or the multiplier of a Keras schedule.
        self._variable = optimizer.learning_rate
        if not self.is_number:
            with model.distribute_strategy.scope():
                self._variable = keras.Variable(
                    1.0, trainable=False, name="learning_rate_multiplier"
                )
            multiply_schedule(optimizer, self._variable)
            # A step that was already traced does not read the variable.
            model.make_train_function(force=True)
        self.scale: float | None = None
        self.multiplier = 1.0
        self.steps_before = int(optimizer.iterations.numpy())
        # The rate before all factors; it may already contain some unless it is known.
        self.base = self._last = self.current
        self.is_known = not self.is_number or self.steps_before == 0

    @property
    def current(self) -> float:
        """The value of the variable."""
        return _number_of(self._variable)

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed training run needs, as JSON."""
        names = ("base", "scale", "multiplier", "steps_before", "is_known", "_last")
        return {name: getattr(self, name) for name in names}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned in another process."""
        vars(self).update(state)
        if not self.is_number:
            self._variable.assign(self._last)
        # The restored rate may contain a change that came after the last factor.
        self.fold()

    def begin(self) -> None:
        """Treat a rate that was set between two calls of `fit` as already scaled."""
        if self.current != self._last:
            self.base = self.current / (1.0 if self.scale is None else self.scale)
            self.multiplier = 1.0
            self._last = self.current

    def fold(self) -> None:
        """Fold changes by others, such as ReduceLROnPlateau, into the base rate."""
        if self.current != self._last and self._last:
            self.base *= self.current / self._last
        self._last = self.current

    def apply(self) -> float:
        """Set the variable; return the new rate over the old one, or 1."""
        old = self.current
        scale = 1.0 if self.scale is None else self.scale
        self._variable.assign(self.base * scale * self.multiplier)
        self._last = self.current
        return self._last / old if old else 1.0


def current_rate(model: keras.Model) -> float:
    """Return the learning rate of the next step, from the model's first optimizer."""
    return _number_of(leaf_optimizers(model.optimizer)[0].learning_rate)


def state_of_rates(model: keras.Model) -> list[Any]:
    """Return the state of a model's rates as JSON, for a resumed training run."""
    kept = [_kept_rate_of(leaf) for leaf in leaves_of(model)]
    return [None if rate is None else rate.state() for rate in kept]


def set_state_of_rates(model: keras.Model, state: list[Any]) -> None:
    """Restore a state that `state_of_rates` returned in another process."""
    for leaf, kept in zip(leaves_of(model), state, strict=True):
        if kept is not None:
            _rate_of(leaf, model).set_state(kept)


def correct_momentum(optimizer: Any, ratio: float) -> None:
    """Multiply momentum that contains earlier learning rates by new rate over old."""
    momentums = [v for one in leaf_optimizers(optimizer) for v in _momentums(one)]
    if momentums:
        _multiply(momentums, tf.constant(ratio, "float64"))


def _momentums(optimizer: Any) -> list[Any]:
    """Return the variables that contain earlier learning rates, on each device."""
    # Others apply the rate after momentum. Custom optimizers set the attribute.
    if not getattr(
        optimizer,
        "momentum_holds_learning_rate",
        isinstance(optimizer, keras.optimizers.SGD | keras.optimizers.RMSprop),
    ):
        return []
    return [
        copy
        for variable in optimizer.variables
        if variable.name.endswith("_momentum") and not is_elsewhere(variable)
        for copy in copies_here(variable)
    ]


@tf.function
def _multiply(variables: list[Any], ratio: tf.Tensor) -> None:
    """Multiply variables in place."""
    for variable in variables:
        variable.assign(variable * tf.cast(ratio, variable.dtype))


def _rate_of(optimizer: Any, model: keras.Model) -> Rate:
    """Return the `Rate` of an optimizer, creating it on first use."""
    kept = _kept_rate_of(optimizer)
    if kept is None or kept.is_number != _is_number(optimizer):
        kept = vars(optimizer)[_ATTRIBUTE] = Rate(optimizer, model)
    return kept


def _kept_rate_of(optimizer: Any) -> Rate | None:
    """Return the `Rate` that an optimizer holds, if any."""
    return vars(optimizer).get(_ATTRIBUTE)


def _is_number(optimizer: Any) -> bool:
    """Return whether the learning rate is a number, not a schedule."""
    return isinstance(optimizer.learning_rate, keras.Variable)


def _number_of(rate: Any) -> float:
    """Return a variable or tensor as a number."""
    return float(keras.ops.convert_to_numpy(rate))


def _check_initial(initial: Any) -> None:
    """Refuse an initial learning rate that is not positive."""
    rates = initial if isinstance(initial, list | tuple) else [initial]
    if initial is not None and not all(
        isinstance(rate, int | float) and rate > 0 for rate in rates
    ):
        raise ValueError(
            "initial_learning_rate must be a positive number, or a list of them. "
            f"Received: initial_learning_rate={initial!r}. Give the rate that "
            "suits the batch of one process."
        )
