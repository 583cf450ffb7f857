"""Gradients on their way between ranks."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.wire_format import without_bfloat16
from tfdist.gradients.buckets import plan_groups
from tfdist.horovod.basics import Average, Sum
from tfdist.horovod.native import native
from tfdist.horovod.peers import tie


@dataclass(frozen=True)
class Reduction:
    """How gradients are combined; the arguments of `DistributedOptimizer`.

    Args:
        name: What the operations are called in graphs and timelines.
        device_dense: Where dense gradients are reduced. Empty: where they are.
        device_sparse: Where sparse gradients are gathered. Empty: where they are.
        compression: One of `Compression`.
        sparse_as_dense: Whether to make sparse gradients dense first.
        gradient_predivide_factor: How much of the average is divided before the sum.
        op: `Average`, `Sum` or `Adasum`.
        groups: As in `plan_groups`, by the keys of variables; those of other variables
            are left to their own optimizers.
        process_set: The ranks that take part.
        scale_local_gradients: Whether gradients of local variables are divided by the
            number of ranks.
        ties_ranks: Whether the ranks are sure to reduce for the first time together,
            so that this ties them.
    """

    name: str
    device_dense: str
    device_sparse: str
    compression: Any
    sparse_as_dense: bool
    gradient_predivide_factor: float
    op: Any
    groups: int | Sequence[Sequence[Hashable]] | None
    process_set: Any
    scale_local_gradients: bool
    ties_ranks: bool
    _functions: dict[Any, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def reduce(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        local: Collection[Hashable],
    ) -> list[Any]:
        """Combine the gradients of all ranks.

        Args:
            gradients: Tensors, `tf.IndexedSlices` and None; the same on every rank but
                for the values, and for the rows of slices.
            variables: What they are the gradients of.
            local: The keys of the variables that each rank has for itself.

        Returns:
            The combined gradients, None where there was none.
        """
        keys = [key_of(variable) for variable in variables]
        results = [None if g is None else _as_tensor(g) for g in gradients]
        if self.scale_local_gradients and local:
            size = native.size_op(self.process_set.process_set_id)
            for place, key in enumerate(keys):
                if key in local and results[place] is not None:
                    results[place] = _scale(results[place], 1 / size)
        places = [
            place
            for place, key in enumerate(keys)
            if key not in local and results[place] is not None
        ]
        if places:
            if self.ties_ranks:
                tie(self.process_set)
            plan = self._plan([keys[place] for place in places])
            reduced = self._reduce_with_others(
                [results[place] for place in places], plan
            )
            for place, gradient in zip(places, reduced, strict=True):
                results[place] = gradient
        return results

    def _plan(self, keys: Sequence[Hashable]) -> list[list[int]]:
        """Divide gradients into the groups that travel in one message."""
        groups = self.groups
        if groups is not None and not isinstance(groups, int):
            groups = [[key for key in group if key in keys] for group in groups]
        return plan_groups(groups, keys, range(len(keys)))

    def _reduce_with_others(
        self, gradients: list[Any], plan: Sequence[Sequence[int]]
    ) -> list[Any]:
        """Reduce if there are others; how many, an elastic job may change later."""
        if self.sparse_as_dense:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        process_set = self.process_set
        if process_set.included() and process_set.size() > 1:
            return self._reduce(gradients, plan)
        number = process_set.process_set_id
        is_included = tf.equal(native.process_set_included_op(number), 1)
        has_others = tf.logical_and(is_included, native.size_op(number) > 1)
        results: list[Any] = tf.cond(
            has_others, lambda: self._reduce(gradients, plan), lambda: gradients
        )
        return results

    def _reduce(self, gradients: list[Any], plan: Sequence[Sequence[int]]) -> list[Any]:
        """Put the operations into the graph; in eager code, into one of their own."""
        if not tf.executing_eagerly():
            return self._reduce_groups(gradients, plan)
        # Each would be waited for before the next sets out.
        key = tuple(map(tuple, plan))
        if key not in self._functions:
            self._functions[key] = tf.function(
                lambda gradients: self._reduce_groups(gradients, plan),
                autograph=False,
                reduce_retracing=True,
            )
        results: list[Any] = self._functions[key](gradients)
        return results

    def _reduce_groups(
        self, gradients: Sequence[Any], plan: Sequence[Sequence[int]]
    ) -> list[Any]:
        """Put one operation for each group, type and sparse gradient into the graph.

        The names count places. The names of layers, which Horovod's own are made of,
        differ between ranks as soon as one of them has made a model more.
        """
        results = list(gradients)
        with tf.name_scope(f"{self.name}_Allreduce"):
            for group in plan:
                self._reduce_group(results, group)
        return results

    def _reduce_group(self, gradients: list[Any], group: Sequence[int]) -> None:
        """Put the results of one group into its places."""
        by_type: dict[Any, list[int]] = {}
        for place in group:
            gradient = gradients[place]
            if isinstance(gradient, tf.IndexedSlices):
                gradients[place] = self._gather(gradient, f"sparse_{place}")
            else:
                by_type.setdefault(gradient.dtype, []).append(place)
        for places in by_type.values():
            reduced = self._all_reduce([gradients[place] for place in places], places)
            for place, gradient in zip(places, reduced, strict=True):
                gradients[place] = gradient

    def _all_reduce(self, tensors: list[Any], places: Sequence[int]) -> list[Any]:
        """All-reduce dense gradients of one type, in one message if there are more."""
        before, after = self._factors()
        options: dict[str, Any] = {
            "op": self.op,
            "compression": self.compression,
            "device_dense": self.device_dense,
            "prescale_factor": before,
            "postscale_factor": after,
            "process_set": self.process_set,
        }
        dtype = tensors[0].dtype
        tensors = list(map(without_bfloat16, tensors))
        if len(tensors) == 1:
            name = f"gradient_{places[0]}"
            reduced = [native.allreduce(tensors[0], name=name, **options)]
        else:
            name = f"gradients_{places[0]}_and_{len(places) - 1}"
            reduced = native.grouped_allreduce(tensors, name=name, **options)
        return [tf.cast(tensor, dtype) for tensor in reduced]

    def _gather(self, slices: tf.IndexedSlices, name: str) -> tf.IndexedSlices:
        """Join the rows of all ranks, which adds them up."""
        if self.op not in (Average, Sum):
            raise ValueError(
                "Adasum cannot combine sparse gradients. Received: the gradient of an "
                f"embedding, of {slices.values.dtype.name}. Pass sparse_as_dense=True."
            )
        before, after = self._factors()
        values, dtype = slices.values, slices.values.dtype
        with tf.device(self.device_sparse):
            if before != 1.0:
                values = values * before
            values = without_bfloat16(values)
            rows = [
                native.allgather(
                    tensor, name=f"{name}_{what}", process_set=self.process_set
                )
                for what, tensor in (("values", values), ("indices", slices.indices))
            ]
            values = tf.cast(rows[0], dtype)
            if self.op == Average:
                size = native.size_op(self.process_set.process_set_id)
                values = values * (after / tf.cast(size, dtype))
        return tf.IndexedSlices(values, rows[1], slices.dense_shape)

    def _factors(self) -> tuple[float, float]:
        """Return what to multiply with before the sum and after, beside the average."""
        factor = self.gradient_predivide_factor
        return (1.0 / factor, factor) if self.op == Average else (1.0, 1.0)


def key_of(variable: Any) -> Hashable:
    """Return what stands for a variable, whether Keras's or TensorFlow's.

    Args:
        variable: Of either kind.
    """
    value = variable.value if isinstance(variable, keras.Variable) else variable
    key: Hashable = value.ref()
    return key


def _as_tensor(gradient: Any) -> Any:
    """Make a tensor of an array; a sparse gradient stays sparse."""
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    return gradient if is_sparse else tf.convert_to_tensor(gradient)


def _scale(gradient: Any, factor: Any) -> Any:
    """Multiply a dense or sparse gradient by a scalar tensor."""
    if isinstance(gradient, tf.IndexedSlices):
        values = _scale(gradient.values, factor)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
