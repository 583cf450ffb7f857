"""The class of wrapped optimizers, and their accumulation over passes."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster.detect import is_elastic
from tfdist.compat.keras.own_reduction import OwnReduction, optimizers_in
from tfdist.horovod.reduction import Reduction
from tfdist.horovod.variables import key_of


def wrapped_class(base: type, reduction: Reduction) -> type:
    """Return a subclass of an optimizer's class that reduces gradients first."""
    # Keras saves it under the name of the base class: it loads without tfdist.
    is_public = getattr(keras.optimizers, base.__name__, None) is base
    attributes = {
        "__module__": "keras.optimizers" if is_public else base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "reduction": reduction,
    }
    name = keras.saving.get_registered_name(base)
    return type(name, (ReducingOptimizer, base), attributes)


class ReducingOptimizer(OwnReduction):
    """A mixin for optimizer classes that reduces gradients over ranks first."""

    reduction: Reduction

    # Attributes of the optimizer's class.
    name: str
    built: bool
    iterations: Any
    build: Callable[[Sequence[Any]], None]
    _trainable_variables: Sequence[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        passes = self.reduction.options.backward_passes_per_step
        self._accumulation = Accumulation(passes) if passes > 1 else None
        self._local_keys: frozenset[Hashable] = frozenset()

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of a Keras or TensorFlow variable local to this rank."""
        self._local_keys |= {key_of(var)}

    def joint_step(self, what: str) -> AbstractContextManager[None]:
        """Mark a block in which all ranks train a step."""
        # Ranks may make different numbers of passes.
        if self._accumulation is not None:
            return nullcontext()
        return self.reduction.joint_call(what)

    def drop_passes(self) -> None:
        """Discard the gradients of an incomplete step."""
        if self._accumulation is not None:
            self._accumulation.reset()

    def variables_of_passes(self) -> list[Any]:
        """Return the counter of passes and the sums of gradients, if any."""
        if self._accumulation is None:
            return []
        return self._accumulation.variables(self._trainable_variables)

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        """Reduce the gradients, then update the variables."""
        base: Any = super()
        is_unknown = trainable_variables is None and not self.built
        if self.is_reduced or not grads or is_unknown:
            # Keras reports the error for gradients of unknown variables.
            base.apply(grads, trainable_variables)
            return
        variables = list(trainable_variables or self._trainable_variables)
        self._build_once(variables)
        self.apply_reduced(grads, variables, lambda grads: base.apply(grads, variables))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients before a user's own method gets, say clips, them."""
        base: Any = super()
        pairs = [*grads_and_vars]
        if self.is_reduced or not pairs:
            return base.apply_gradients(pairs, *args, **kwargs)
        grads, variables = zip(*pairs, strict=True)
        self._build_once(variables)

        def apply(reduced: Sequence[Any]) -> None:
            reduced_pairs = [*zip(reduced, variables, strict=True)]
            base.apply_gradients(reduced_pairs, *args, **kwargs)

        self.apply_reduced(grads, variables, apply)
        return self.iterations

    def _build_once(self, variables: Sequence[Any]) -> None:
        """Build here, not in a conditional branch that may contain the update."""
        if not self.built:
            with keras.name_scope(self.name):
                self.build(variables)
            self.built = True

    def apply_reduced(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        apply: Callable[[Sequence[Any]], None],
    ) -> None:
        """Reduce gradients over ranks in the last pass, and apply them."""
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
        """Return whether gradients of ranks or passes are ever summed."""
        process_set = self.reduction.options.process_set
        has_others = process_set.included() and process_set.size() > 1
        return has_others or is_elastic() or self._accumulation is not None

    def _reduce_and_apply(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        apply: Callable[[Sequence[Any]], None],
    ) -> None:
        """Reduce the gradients of a step, and apply them."""
        reduced = self.reduction.reduce(grads, variables, self._local_keys)
        if self.reduction.options.average_aggregated_gradients and self._accumulation:
            passes = self._accumulation.passes
            reduced = [None if grad is None else grad / passes for grad in reduced]
        with self.gradients_are_reduced():
            apply(reduced)

    def _made_dense(self, grads: Sequence[Any]) -> list[Any]:
        """Convert gradients to dense ones, since sparse ones cannot be accumulated."""
        is_sparse = any(isinstance(grad, tf.IndexedSlices) for grad in grads)
        if is_sparse and not self.reduction.options.sparse_as_dense:
            raise ValueError(
                "Sparse gradients cannot be added up over passes. Received: the "
                "gradient of an embedding, and backward_passes_per_step above 1. Pass "
                "sparse_as_dense=True."
            )
        return [None if grad is None else tf.convert_to_tensor(grad) for grad in grads]

    def _count_pass(self) -> None:
        """Count a pass without an update: Horovod's iterations are passes."""
        counters = {id(one.iterations): one.iterations for one in optimizers_in(self)}
        for iterations in counters.values():
            iterations.assign_add(1)


class Accumulation:
    """The sums of gradients over `backward_passes_per_step` passes on this rank."""

    # Variables outside the optimizer's state: a saved model loads in plain Keras.
    def __init__(self, passes: int) -> None:
        self.passes = passes
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, dtype=tf.int32)
        self._sums: dict[Hashable, tf.Variable] = {}

    def add(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        update: Callable[[list[Any]], None],
        skip: Callable[[], None],
    ) -> None:
        """Add the dense gradients of one pass; then update with the sums, or skip."""
        sums = [
            None if gradient is None else self._sum_of(variable, gradient.dtype)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        totals = [
            None if total is None else total.assign_add(gradient, read_value=True)
            for total, gradient in zip(sums, gradients, strict=True)
        ]
        count = self.counter.assign_add(1, read_value=True)

        def update_and_reset() -> None:
            update([None if t is None else tf.convert_to_tensor(t) for t in totals])
            self.reset()

        tf.cond(
            tf.greater_equal(count, self.passes),
            update_and_reset,
            skip,
        )

    def reset(self) -> None:
        """Discard the gradients of an incomplete step."""
        self.counter.assign(0)
        for total in self._sums.values():
            # Not a multiplication by zero, which would keep an overflow.
            total.assign(tf.zeros_like(total))

    def variables(self, trained: Sequence[Any]) -> list[tf.Variable]:
        """Return the counter, and the sum of each variable, also before its first."""
        sums = [self._sum_of(variable, variable.dtype) for variable in trained]
        return [self.counter, *sums]

    def _sum_of(self, variable: Any, dtype: Any) -> tf.Variable:
        """Return the variable of a sum, creating it on first use."""
        key = key_of(variable)
        if key not in self._sums:
            with tf.init_scope():
                zeros = tf.zeros(variable.shape, dtype)
                self._sums[key] = tf.Variable(
                    zeros, trainable=False, name="gradient_accumulator"
                )
        return self._sums[key]


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
    """Refuse variables whose gradients are new values, which cannot be summed."""
    for variable in variables:
        if getattr(variable, "overwrite_with_gradient", False):
            raise ValueError(
                "A variable cannot be overwritten with its gradient where gradients of "
                f"ranks or passes are added up. Received: {variable.path}. Train "
                "without float8 quantization; or on one process, not in an elastic "
                "job, with backward_passes_per_step=1."
            )
