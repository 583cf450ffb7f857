"""The optimizer that a wrapped one becomes."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster.detect import is_elastic
from tfdist.compat.keras.own_reduction import OwnReduction, optimizers_in
from tfdist.horovod.accumulation import Accumulation
from tfdist.horovod.reduction import Reduction, key_of


@dataclass(frozen=True)
class Wrapping:
    """What every instance of a wrapped optimizer's class has in common.

    Args:
        reduction: How gradients are combined.
        backward_passes_per_step: How many passes make one update.
        average_aggregated_gradients: Whether their sum is divided by their number.
    """

    reduction: Reduction
    backward_passes_per_step: int
    average_aggregated_gradients: bool


def make_class(base: type, wrapping: Wrapping) -> type:
    """Make the class of a wrapped optimizer: the optimizer's, with a first step more.

    It goes by the name under which Keras saves the optimizer's own class. What is
    saved is therefore a plain optimizer, and loads without tfdist.

    Args:
        base: The class of an optimizer.
        wrapping: What the wrapped one does.

    Returns:
        A subclass of it.
    """
    is_public = getattr(keras.optimizers, base.__name__, None) is base
    attributes = {
        "__module__": "keras.optimizers" if is_public else base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "wrapping": wrapping,
    }
    name = keras.saving.get_registered_name(base)
    return type(name, (ReducingOptimizer, base), attributes)


class ReducingOptimizer(OwnReduction):
    """Reduces gradients over ranks before the optimizer does anything with them.

    It stands before the class of an optimizer of Keras in the line of classes: what
    `super()` leads to is that optimizer.
    """

    wrapping: Wrapping

    # What the optimizer's own class has.
    name: str
    built: bool
    iterations: Any
    build: Callable[[Sequence[Any]], None]
    _trainable_variables: Sequence[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        passes = self.wrapping.backward_passes_per_step
        self._accumulation = Accumulation(passes) if passes > 1 else None
        self._local_keys: frozenset[Hashable] = frozenset()

    @property
    def process_set(self) -> Any:
        """The ranks that take part."""
        return self.wrapping.reduction.process_set

    def register_local_var(self, var: Any) -> None:
        """Leave a variable's gradient to this rank.

        Args:
            var: A variable of Keras or of TensorFlow.
        """
        self._local_keys |= {key_of(var)}

    def drop_passes(self) -> None:
        """Drop the passes of a step that has begun, and that some rank has lost."""
        if self._accumulation is not None:
            self._accumulation.reset()

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        """Reduce the gradients, then update the variables.

        Args:
            grads: The gradients of this rank.
            trainable_variables: Their variables. Default None: those that the optimizer
                was built with.

        Raises:
            RuntimeError: If it is called under a strategy, which reduces by itself.
            ValueError: If the gradients are of a kind that cannot be reduced.
        """
        base: Any = super()
        is_unknown = trainable_variables is None and not self.built
        if self.is_reduced or not grads or is_unknown:
            # Where nobody knows of what they are the gradients, Keras says so.
            base.apply(grads, trainable_variables)
            return
        variables = list(trainable_variables or self._trainable_variables)
        if not self.built:
            # Not in the branch of a condition, where the update may stand.
            with keras.name_scope(self.name):
                self.build(variables)
            self.built = True
        self.apply_reduced(grads, variables, lambda grads: base.apply(grads, variables))

    def apply_reduced(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        apply: Callable[[Sequence[Any]], None],
    ) -> None:
        """Reduce gradients over ranks, if it is time to, and call `apply` with them.

        Args:
            grads: The gradients of this rank, or None.
            variables: What they are the gradients of.
            apply: Takes the reduced gradients.
        """
        _check_no_strategy(self.name)
        if self._adds_up():
            _check_not_overwritten(variables)
        if self._accumulation is None:
            self._reduce_and_apply(grads, variables, apply)
            return
        self._accumulation.add(
            self._made_dense(grads),
            variables,
            lambda sums: self._reduce_and_apply(sums, variables, apply),
            self._count_pass,
        )

    def _adds_up(self) -> bool:
        """Say whether gradients of ranks or of passes are added up, now or later."""
        has_others = self.process_set.included() and self.process_set.size() > 1
        return has_others or is_elastic() or self._accumulation is not None

    def _reduce_and_apply(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        apply: Callable[[Sequence[Any]], None],
    ) -> None:
        """Reduce the gradients of a step, and call `apply` with them."""
        reduced = self.wrapping.reduction.reduce(grads, variables, self._local_keys)
        if self.wrapping.average_aggregated_gradients and self._accumulation:
            passes = self._accumulation.passes
            reduced = [None if grad is None else grad / passes for grad in reduced]
        with self.gradients_are_reduced():
            apply(reduced)

    def _made_dense(self, grads: Sequence[Any]) -> list[Any]:
        """Make sparse gradients dense, which alone can be added up."""
        is_sparse = any(isinstance(grad, tf.IndexedSlices) for grad in grads)
        if is_sparse and not self.wrapping.reduction.sparse_as_dense:
            raise ValueError(
                "Sparse gradients cannot be added up over passes. Received: the "
                "gradient of an embedding, and backward_passes_per_step="
                f"{self.wrapping.backward_passes_per_step}. Pass sparse_as_dense=True."
            )
        return [None if grad is None else tf.convert_to_tensor(grad) for grad in grads]

    def _count_pass(self) -> None:
        """Count a pass that updates nothing: Horovod's iterations are passes."""
        counters = {id(one.iterations): one.iterations for one in optimizers_in(self)}
        for iterations in counters.values():
            iterations.assign_add(1)


def _check_no_strategy(name: str) -> None:
    """Refuse a strategy, under which the gradients would be reduced twice."""
    if tf.distribute.has_strategy():
        strategy = type(tf.distribute.get_strategy()).__name__
        raise RuntimeError(
            "A distributed optimizer must be used without a strategy. Received: "
            f"{name} under {strategy}. Leave out the scope, or use the plain optimizer "
            "under tfdist.strategies.HorovodStrategy."
        )


def _check_not_overwritten(variables: Sequence[Any]) -> None:
    """Refuse variables whose gradients are new values, which no sum of them is."""
    for variable in variables:
        if getattr(variable, "overwrite_with_gradient", False):
            raise ValueError(
                "A variable cannot be overwritten with its gradient where gradients of "
                f"ranks or passes are added up. Received: {variable.path}. Train "
                "without float8 quantization; or on one process, not in an elastic "
                "job, with backward_passes_per_step=1."
            )
