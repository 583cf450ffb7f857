"""Optimizers that Keras does not have, for large batches and large tables."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf
from keras import ops

from tfdist.compat.keras.learning_rates import OwnDecayOptimizer
from tfdist.compat.keras.sharded_optimizer import RowUpdates

__all__ = ["Lars", "LazyAdam", "LazySGD"]


@keras.saving.register_keras_serializable(package="tfdist")
class Lars(OwnDecayOptimizer):
    """SGD with momentum, and a learning rate for each layer (LARS).

    With the learning rate of a large batch, the first steps may change some layers by
    more than their own weights, and training diverges. LARS multiplies the learning
    rate of each weight by a trust ratio, so that the size of an update depends on the
    norm of the weight, not of the gradient:

        ratio = trust_coefficient * norm(weight)
                / (norm(gradient) + weight_decay * norm(weight) + epsilon)
        velocity = momentum * velocity
                   - learning_rate * ratio * (gradient + weight_decay * weight)
        weight = weight + velocity

    The ratio is 1 if one of the norms is 0. This is algorithm 1 of the paper, with the
    sign of the velocity in Keras's `SGD`, and equals `LARSOptimizer` of TensorFlow 1
    (`tf.contrib.opt`). The velocity includes the learning rate; NVIDIA's
    `LARC(clip=False)` has the same ratio but multiplies the velocity by the learning
    rate afterwards, which differs only when the rate changes. Others, such as SimCLR's
    LARS, divide by the norm of the sum of gradient and decay.

    Biases and normalization parameters have neither a ratio nor weight decay: their
    updates equal those of `SGD(learning_rate, momentum)` bit by bit. If a learning rate
    is too large for them, use a smaller one with a larger `trust_coefficient`.

    Norms are computed in float32 or more, also for 16-bit variables. Sparse gradients
    are made dense, because each step changes every row. Import `tfdist.optimizers`
    before loading a file with this optimizer.

    Args:
        learning_rate: A float, a Keras `LearningRateSchedule` or a function without
            arguments. Without momentum, one step changes a layer by up to
            `learning_rate * trust_coefficient` times its norm, so good values are
            larger than for SGD.
        momentum: The fraction of the velocity that a step keeps, from 0 to below 1.
            Default 0.9.
        trust_coefficient: The size of an update in one step, as a fraction of the
            layer's norm. Default 0.001, as in the paper.
        weight_decay: The L2 regularization, as part of the ratio and the velocity; it
            replaces Keras's decoupled decay and respects `exclude_from_weight_decay`.
            Default 0.
        epsilon: Added to the divisor of the ratio. Default 1e-8.
        exclude_from_adaptation: Words; variables whose path contains one of them get
            neither ratio nor weight decay, as with `["bias", "batch_normalization"]`.
            An empty list excludes no variable. Default None: exclude variables with
            fewer than two axes, which are biases, gamma and beta.
        **options: The options of all Keras optimizers: `name`, `clipnorm`, `clipvalue`,
            `global_clipnorm`, `use_ema`, `ema_momentum`, `ema_overwrite_frequency`,
            `loss_scale_factor` and `gradient_accumulation_steps`.

    Raises:
        TypeError: If `exclude_from_adaptation` is one string.
        ValueError: If an argument is out of range or unknown.

    Example:
        >>> optimizer = Lars(2.0, trust_coefficient=0.25, momentum=0.0)
        >>> weight = keras.Variable([[3.0, 4.0]])
        >>> optimizer.apply([ops.convert_to_tensor([[0.0, 1.0]])], [weight])
        >>> weight.numpy().round(4).tolist()
        [[3.0, 1.5]]

    References:
        You, Gitman and Ginsburg 2017, "Large Batch Training of Convolutional Networks",
        https://arxiv.org/abs/1708.03888
    """

    # Callbacks that change the rate correct the momentum.
    momentum_holds_learning_rate: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Any,
        momentum: float = 0.9,
        *,
        trust_coefficient: float = 0.001,
        weight_decay: float | None = 0.0,
        epsilon: float = 1e-8,
        exclude_from_adaptation: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        weight_decay = 0.0 if weight_decay is None else weight_decay
        _check(momentum, trust_coefficient, weight_decay, epsilon)
        if isinstance(exclude_from_adaptation, str):
            raise TypeError(
                "exclude_from_adaptation must be a list of words. Received: "
                f"exclude_from_adaptation={exclude_from_adaptation!r}. "
                f"Use [{exclude_from_adaptation!r}]."
            )
        super().__init__(learning_rate, weight_decay=weight_decay, **options)
        self.momentum = momentum
        self.trust_coefficient = trust_coefficient
        self.epsilon = epsilon
        self.exclude_from_adaptation = (
            None if exclude_from_adaptation is None else tuple(exclude_from_adaptation)
        )

    def build(self, variables: Sequence[Any]) -> None:
        """Create the velocities of the variables."""
        if self.built:
            return
        super().build(variables)
        self._momentums = [
            self.add_variable_from_reference(variable, name="momentum")
            for variable in variables
        ]
        self._adapted = tuple(self._is_adapted(variable) for variable in variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable by its dense or sparse gradient."""
        index = self.index_of(variable)
        dtype = keras.backend.result_type(variable.dtype, "float32")
        # Repeated rows of a sparse gradient must be added up before its norm is taken.
        gradient = ops.cast(tf.convert_to_tensor(gradient), dtype)
        rate = ops.cast(learning_rate, dtype)
        if self._adapted[index]:
            weight = ops.cast(variable, dtype)
            decay = self.weight_decay if self.is_decayed(variable) else 0.0
            rate *= self._trust_ratio(weight, gradient, decay)
            gradient += decay * weight
        kept = self._momentums[index]
        velocity = ops.cast(kept, dtype) * self.momentum - gradient * rate
        self.assign(kept, velocity)
        self.assign_add(variable, velocity)

    def get_config(self) -> dict[str, Any]:
        """Return the serialized arguments by name."""
        words = self.exclude_from_adaptation
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "trust_coefficient": self.trust_coefficient,
            "epsilon": self.epsilon,
            "exclude_from_adaptation": None if words is None else list(words),
        }

    def _is_adapted(self, variable: Any) -> bool:
        """Return whether a variable has a trust ratio and weight decay."""
        if self.exclude_from_adaptation is None:
            return len(variable.shape) > 1
        # A TensorFlow variable has a name only.
        path = getattr(variable, "path", variable.name)
        return not any(word in path for word in self.exclude_from_adaptation)

    def _trust_ratio(self, weight: Any, gradient: Any, decay: float) -> Any:
        """Return the trust ratio of a variable."""
        of_weight, of_gradient = _norm(weight), _norm(gradient)
        divisor = of_gradient + decay * of_weight + self.epsilon
        return ops.where(
            ops.logical_and(of_weight > 0, of_gradient > 0),
            self.trust_coefficient * of_weight / divisor,
            ops.ones_like(divisor),
        )


@keras.saving.register_keras_serializable(package="tfdist")
class LazyAdam(RowUpdates, keras.optimizers.Adam):
    """Adam, without the change of the rows of an `Embedding` that a batch lacks.

    Adam moves every weight in every step, as long as its momentum lasts. Of a large
    table, that takes far longer than the update of the rows in the batch. This
    optimizer gives the rows in the batch the update of `keras.optimizers.Adam` and
    leaves all others as they are, with their momentum, until a batch has them again. So
    the weights differ from those of Adam, unless each batch has all rows. Weights with
    dense gradients get exactly the update of Adam. Weight decay, a moving average of
    the weights and gradient accumulation still change every row.

    It takes the arguments of `keras.optimizers.Adam`. Import `tfdist.optimizers` before
    loading a file with this optimizer.

    Example:
        >>> optimizer = LazyAdam(0.001)

    References:
        `LazyAdamOptimizer` of TensorFlow 1 (`tf.contrib.opt`), `LazyAdam` of TensorFlow
        Addons.
    """


@keras.saving.register_keras_serializable(package="tfdist")
class LazySGD(RowUpdates, keras.optimizers.SGD):
    """SGD with momentum, of which a step changes only the rows in the batch.

    As `LazyAdam`, but the rows in the batch get the update of `keras.optimizers.SGD`,
    whose arguments it takes. Without momentum, SGD itself changes only these rows.

    Example:
        >>> optimizer = LazySGD(0.1, momentum=0.9)
    """


def _norm(tensor: Any) -> Any:
    """Return the Euclidean norm of all elements."""
    return ops.sqrt(ops.sum(ops.square(tensor)))


def _check(
    momentum: float, trust_coefficient: float, weight_decay: float, epsilon: float
) -> None:
    """Reject numbers that are out of range."""
    if not 0 <= momentum < 1:
        raise ValueError(
            "momentum must be at least 0 and below 1. "
            f"Received: momentum={momentum}. Use 0.9, or 0 for none."
        )
    if not trust_coefficient > 0:
        raise ValueError(
            "trust_coefficient must be positive. "
            f"Received: trust_coefficient={trust_coefficient}. Use 0.001."
        )
    for name, value in (("weight_decay", weight_decay), ("epsilon", epsilon)):
        if not value >= 0:
            raise ValueError(
                f"{name} must not be negative. Received: {name}={value}. Use 0 for "
                "none."
            )
