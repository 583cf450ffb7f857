"""Loss scaling on which all replicas agree."""

from collections.abc import Sequence
from typing import Any, Unpack

import keras

from tfdist.compat.keras import apply_reduced, install
from tfdist.mixed_precision.counters import Counters
from tfdist.mixed_precision.options import (
    GROWTH_STEPS,
    LossScaleOptions,
    config_of,
    make_rule,
)
from tfdist.mixed_precision.scale_rule import ScaleState


@keras.saving.register_keras_serializable(package="tfdist")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]
    """Scales the loss, so that small gradients do not become zero in float16.

    The loss is multiplied by a scale before the backward pass, and the gradients are
    divided by it after. A step whose gradients overflow is skipped. The scale
    grows after `dynamic_growth_steps` finite steps in a row, and shrinks when a step
    overflows.

    Keras decides on each replica's own gradients whether a step overflows, although
    they are summed only afterwards: an overflow elsewhere is then written into the
    weights. Here the gradients of all replicas are summed first: all of them skip a
    step, or none; then come the unscaling, the clipping and the update. That holds
    under tfdist's strategies, at no message more, and under TensorFlow's
    `MirroredStrategy`, where gradient accumulation works with it, too.

    The scale and the number of skipped steps appear in the logs of each epoch as
    `loss_scale` and `skipped_steps`, and are saved and restored with the model. A file
    with this optimizer loads where `tfdist.mixed_precision` is imported. The state of
    Keras's own `LossScaleOptimizer` loads into this one, and the reverse.

    Args:
        inner_optimizer: The optimizer that updates the weights, with its own clipping,
            weight decay, averages and accumulation.
        initial_scale: The scale of the first step. Default 2**15.
        dynamic_growth_steps: Finite steps in a row after which the scale grows.
            Default 2000.
        name: The name of the optimizer. Default None: one made from the class.
        **options: By keyword.

            - `growth_factor`: What the scale is multiplied by to grow. Default 2.
            - `backoff_factor`: What it is multiplied by to shrink. Default 0.5.
            - `hysteresis`: Which overflow lowers the scale, as in DeepSpeed. With 3,
              the first two are skipped and no more, the third lowers the scale, and so
              does each one after it; when the scale has grown, or would have but for
              its maximum, it begins anew (DeepSpeed's default,
              `consecutive_hysteresis=False`). Default 1: every overflow lowers it.
            - `minimum_scale`: It never shrinks below. Default 1.
            - `maximum_scale`: It never grows above. Default 2**24.
            - `dynamic`: False for a scale that stays as it is, for which the other
              options have no meaning; steps that overflow are still skipped. Default
              True.

    Raises:
        TypeError: If `inner_optimizer` is no optimizer.
        ValueError: If an option is unknown, out of range, or has no effect.

    Example:
        >>> inner = keras.optimizers.Adam(1e-3, global_clipnorm=1.0)
        >>> optimizer = LossScaleOptimizer(inner, hysteresis=2)
        >>> optimizer.initial_scale
        32768.0

    References:
        Micikevicius et al., "Mixed Precision Training", ICLR 2018.
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = GROWTH_STEPS,
        name: str | None = None,
        **options: Unpack[LossScaleOptions],
    ) -> None:
        rule = make_rule(initial_scale, dynamic_growth_steps, options)
        _check_inner(inner_optimizer)
        super().__init__(
            inner_optimizer, float(initial_scale), dynamic_growth_steps, name=name
        )
        self.rule = rule
        install(is_alone=True)

    def build(self, var_list: Sequence[Any]) -> None:
        """Make the variables: the scale, the counters, and the inner optimizer's.

        Args:
            var_list: The variables to be optimized.
        """
        super().build(var_list)
        self.counters = Counters()

    @property
    def overflow_counter(self) -> keras.Variable:
        """The overflows since the scale has grown, counted up to `hysteresis`."""
        return self.counters.overflow_counter

    @property
    def skipped_steps(self) -> keras.Variable:
        """The steps skipped since the start of the training."""
        return self.counters.skipped_steps

    @property
    def variables(self) -> list[Any]:
        """All variables: Keras's, those of the inner optimizer, and the counters."""
        return [*super().variables, *(self.counters.variables if self.built else ())]

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        """Update the variables, unless a gradient of any replica is not finite.

        Args:
            grads: The gradients of the scaled loss.
            trainable_variables: Their variables. Default None: those that the optimizer
                was built with.

        Raises:
            RuntimeError: If it is called outside of a replica.
            ValueError: If the optimizer is not built and no variables are given.
        """
        if not self.built:
            if trainable_variables is None:
                raise ValueError(
                    "trainable_variables must be given to an optimizer that is not "
                    "built. Received: trainable_variables=None. Pass them, or call "
                    f"{self.name}.build(trainable_variables) first."
                )
            with keras.name_scope(self.name):
                self.build(list(trainable_variables))
        variables = list(trainable_variables or self._trainable_variables)

        def apply_summed(sums: Sequence[Any]) -> None:
            self._apply_summed(sums, variables)

        apply_reduced(self, list(grads), variables, apply_summed)

    def save_own_variables(self, store: Any) -> None:
        """Save what Keras's own optimizer would, in its order.

        Args:
            store: Where to.
        """
        for number, variable in enumerate(super().variables):
            store[str(number)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load what this optimizer or Keras's own has saved.

        Args:
            store: Where from.
        """
        variables = super().variables
        if len(store.keys()) != len(variables):
            # Keras says what is skipped, and why.
            super().load_own_variables(store)
            return
        for number, variable in enumerate(variables):
            variable.assign(store[str(number)])

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, serialized."""
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {"name": self.name, "inner_optimizer": inner, **config_of(self.rule)}

    def _apply_summed(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        """Check, unscale and apply gradients that are the sums over all replicas."""
        is_finite = self.check_finite(grads)
        scale = keras.ops.convert_to_tensor(self.dynamic_scale)
        unscaled = [
            grad
            if grad is None or variable.overwrite_with_gradient
            else keras.ops.divide(grad, scale)
            for grad, variable in zip(grads, variables, strict=True)
        ]
        keras.ops.cond(
            is_finite,
            lambda: self.inner_optimizer.apply(unscaled, variables),
            lambda: None,
        )
        state = ScaleState(
            self.dynamic_scale,
            self.step_counter,
            self.overflow_counter,
            self.skipped_steps,
        )
        after = self.rule.after(
            ScaleState(*map(keras.ops.convert_to_tensor, state)), is_finite
        )
        for variable, value in zip(state, after, strict=True):
            variable.assign(value)


def _check_inner(inner_optimizer: Any) -> None:
    """Refuse what cannot be wrapped."""
    wrong = not isinstance(inner_optimizer, keras.optimizers.Optimizer)
    if wrong or isinstance(inner_optimizer, keras.optimizers.LossScaleOptimizer):
        raise TypeError(
            "inner_optimizer must be a Keras optimizer without loss scaling. "
            f"Received: inner_optimizer={inner_optimizer!r}. "
            "Pass for example keras.optimizers.Adam(1e-3)."
        )
    if inner_optimizer.loss_scale_factor is not None:
        raise ValueError(
            "inner_optimizer must not scale the loss itself. Received: an optimizer "
            f"with loss_scale_factor={inner_optimizer.loss_scale_factor!r}. Leave it "
            "out there, and for a constant scale use initial_scale and dynamic=False "
            "here."
        )
