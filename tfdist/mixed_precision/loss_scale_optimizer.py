"""Loss scaling on which all replicas agree."""

from collections.abc import Sequence
from typing import Any, Unpack

import keras

from tfdist.compat.keras.install import install
from tfdist.compat.keras.optimizer import apply_reduced
from tfdist.mixed_precision.scale_rule import (
    GROWTH_STEPS,
    LossScaleOptions,
    ScaleState,
    config_of,
    make_rule,
)


@keras.saving.register_keras_serializable(package="tfdist")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Loss scaling, so that small gradients do not underflow in float16.

    The loss is multiplied by a scale before the backward pass, and the gradients are
    divided by it afterwards. A step whose gradients overflow is skipped. The scale
    grows after `dynamic_growth_steps` finite steps in a row, and shrinks when a step
    overflows.

    Keras checks each replica's own gradients before it sums them, so an overflow on
    another replica reaches the weights. This optimizer sums the gradients of all
    replicas first: either all replicas skip a step or none does. Then it unscales,
    clips and applies them. It works under tfdist's strategies, without additional
    communication, and under TensorFlow's `MirroredStrategy`, also with gradient
    accumulation.

    The logs of each epoch contain `loss_scale` and `skipped_steps`, which are saved and
    restored with the model. Import `tfdist.mixed_precision` before loading a file with
    this optimizer. Its state and that of Keras's `LossScaleOptimizer` are
    interchangeable.

    Args:
        inner_optimizer: The optimizer that updates the weights, with its own clipping,
            weight decay, averages and accumulation.
        initial_scale: The scale of the first step. Default 2**15.
        dynamic_growth_steps: Finite steps in a row after which the scale grows. Default
            2000.
        name: The name of the optimizer. Default None: derived from the class.
        **options: By keyword.

            - `growth_factor`: The factor by which the scale grows. Default 2.
            - `backoff_factor`: The factor by which it shrinks. Default 0.5.
            - `hysteresis`: The number of overflows until the scale shrinks, as in
              DeepSpeed with its default, `consecutive_hysteresis=False`. With 3, the
              third overflow and each later one lower the scale. The count restarts
              when the scale is due to grow, even at its maximum. Default 1: every
              overflow lowers it.
            - `minimum_scale`: The lower limit of the scale. Default 1.
            - `maximum_scale`: The upper limit of the scale. Default 2**24.
            - `dynamic`: False for a constant scale, which takes no other options; steps
              that overflow are still skipped. Default True.

    Raises:
        TypeError: If `inner_optimizer` is not an optimizer.
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
        """Create the variables: the scale, the counters, and the inner optimizer's."""
        super().build(var_list)
        self.counters = _Counters()

    @property
    def overflow_counter(self) -> keras.Variable:
        """The number of overflows since the scale last grew, up to `hysteresis`."""
        return self.counters.overflow_counter

    @property
    def skipped_steps(self) -> keras.Variable:
        """The number of skipped steps since training started."""
        return self.counters.skipped_steps

    @property
    def variables(self) -> list[Any]:
        """All variables: Keras's, those of the inner optimizer, and the counters."""
        return [*super().variables, *(self.counters.variables if self.built else ())]

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        """Update the variables, unless any replica's gradient is not finite.

        Args:
            grads: The gradients of the scaled loss.
            trainable_variables: Their variables. Default None: those passed to `build`.

        Raises:
            RuntimeError: If called outside of a replica.
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
        """Save the same variables as Keras's own optimizer, in its order."""
        for number, variable in enumerate(super().variables):
            store[str(number)] = variable

    def load_own_variables(self, store: Any) -> None:
        """Load the variables of this optimizer or of Keras's own."""
        variables = super().variables
        if len(store.keys()) != len(variables):
            # Keras warns that it skips them.
            super().load_own_variables(store)
            return
        for number, variable in enumerate(variables):
            variable.assign(store[str(number)])

    def get_config(self) -> dict[str, Any]:
        """Return the serialized arguments by name."""
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {"name": self.name, "inner_optimizer": inner, **config_of(self.rule)}

    def _apply_summed(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        """Check, unscale and apply the summed gradients."""
        is_finite = self.check_finite(grads)
        scale = keras.ops.convert_to_tensor(self.dynamic_scale)
        unscaled = [
            grad
            if grad is None or variable.overwrite_with_gradient
            else keras.ops.divide(grad, scale)
            for grad, variable in zip(grads, variables, strict=True)
        ]

        def update() -> None:
            self.inner_optimizer.apply(unscaled, variables)
            if self.rule.dynamic:
                self._count_finite_step()

        keras.ops.cond(is_finite, update, lambda: self._follow_rule(is_finite=False))

    def _count_finite_step(self) -> None:
        """Count a step, or let the scale grow."""

        def count() -> None:
            self.step_counter.assign(self.step_counter + 1)

        # On a GPU the arithmetic of the rule takes longer than the choice.
        keras.ops.cond(
            self.step_counter + 1 >= self.rule.dynamic_growth_steps,
            lambda: self._follow_rule(is_finite=True),
            count,
        )

    def _follow_rule(self, *, is_finite: bool) -> None:
        """Assign the state of loss scaling after a step."""
        state = ScaleState(
            self.dynamic_scale,
            self.step_counter,
            self.overflow_counter,
            self.skipped_steps,
        )
        before = ScaleState(*map(keras.ops.convert_to_tensor, state))
        after = self.rule.after(before, is_finite)
        for variable, value in zip(state, after, strict=True):
            variable.assign(value)


class _Counters(keras.layers.Layer):
    """Counters that Keras's `LossScaleOptimizer` lacks, saved as a separate layer."""

    def __init__(self) -> None:
        # Keras loads an optimizer's variables only from a list of equal length. Outside
        # of it, the counters let Keras's optimizer load our files, and the reverse.
        super().__init__(name="loss_scale_counters")
        self.overflow_counter = self._counter("overflow_counter")
        self.skipped_steps = self._counter("skipped_steps")
        self.built = True

    def load_own_variables(self, store: Any) -> None:
        """Load the counters, if the file has them; files of plain Keras do not."""
        if store.keys():
            super().load_own_variables(store)

    def _counter(self, name: str) -> Any:
        """Create a variable that counts from 0."""
        # TensorFlow keeps int32 in the memory of the host, which XLA does not reach.
        return self.add_weight(
            shape=(), initializer="zeros", dtype="int", trainable=False, name=name
        )


def _check_inner(inner_optimizer: Any) -> None:
    """Reject an optimizer that already scales the loss."""
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
