"""Reduction of gradients over ranks, for wrapped optimizers and tapes."""

from collections.abc import Collection, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import to_tensor
from tfdist.collectives.wire_format import by_dtype, without_bfloat16
from tfdist.gradients.buckets import plan_groups
from tfdist.gradients.reducer import weigh
from tfdist.horovod.joint import joint_call, tie
from tfdist.horovod.native import native
from tfdist.horovod.options import ReductionOptions
from tfdist.horovod.variables import key_of


class Reduction:
    """The reduction of gradients over ranks."""

    def __init__(self, options: ReductionOptions) -> None:
        self.options = options
        self._process_set = options.process_set
        self._functions: dict[Any, Any] = {}

    def joint_call(self, what: str) -> AbstractContextManager[None]:
        """Mark a block in which ranks wait for each other, where they are tied."""
        if not self.options.ties_ranks:
            return nullcontext()
        return joint_call(what, self._process_set)

    def reduce(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        local: Collection[Hashable],
    ) -> list[Any]:
        """Reduce gradients over ranks, except for variables with `local` keys."""
        keys = [key_of(variable) for variable in variables]
        results = [None if g is None else to_tensor(g) for g in gradients]
        present = [place for place, g in enumerate(results) if g is not None]
        if self.options.scale_local_gradients and local:
            share = 1 / native.size_op(self._process_set.process_set_id)
            for place in present:
                if keys[place] in local:
                    results[place] = weigh([results[place]], share, is_positive=True)[0]
        places = [place for place in present if keys[place] not in local]
        if places:
            if self.options.ties_ranks:
                tie(self._process_set)
            # Groups may also contain variables of other optimizers.
            plan = plan_groups(
                self.options.groups, [keys[place] for place in places], len(places)
            )
            reduced = self._reduce_if_several([results[p] for p in places], plan)
            for place, gradient in zip(places, reduced, strict=True):
                results[place] = gradient
        return results

    def _reduce_if_several(
        self, gradients: list[Any], plan: Sequence[Sequence[int]]
    ) -> list[Any]:
        """Reduce if there are other ranks; an elastic job may change their number."""
        if self.options.sparse_as_dense:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        process_set = self._process_set
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
        """Add the operations to the graph, or run them in one function if eager."""
        if not tf.executing_eagerly():
            return self._reduce_groups(gradients, plan)
        # Eager code would wait for each operation before the next.
        key = tuple(map(tuple, plan))
        if key not in self._functions:
            self._functions[key] = tf.function(
                lambda gradients: self._reduce_groups(gradients, plan),
                autograph=False,
                reduce_retracing=True,
            )
        with self.joint_call("an all-reduce of gradients"):
            results: list[Any] = self._functions[key](gradients)
        return results

    def _reduce_groups(
        self, gradients: Sequence[Any], plan: Sequence[Sequence[int]]
    ) -> list[Any]:
        """Add one operation per group, dtype and sparse gradient to the graph."""
        results = list(gradients)
        # Names count positions: Horovod's come from layers, whose names differ between
        # ranks once one of them has built another model.
        with tf.name_scope(f"{self.options.name}_Allreduce"):
            for group in plan:
                for places in by_dtype({place: gradients[place] for place in group}):
                    reduced = self._send([gradients[i] for i in places], places)
                    for place, gradient in zip(places, reduced, strict=True):
                        results[place] = gradient
        return results

    def _send(self, tensors: list[Any], places: Sequence[int]) -> list[Any]:
        """All-reduce dense gradients of one dtype in one message, or a sparse one."""
        if isinstance(tensors[0], tf.IndexedSlices):
            return [self._gather(tensors[0], f"sparse_{places[0]}")]
        # The factors before and after the sum, excluding the average.
        factor = self.options.gradient_predivide_factor
        options: dict[str, Any] = {
            "op": self.options.op,
            "compression": self.options.compression,
            "device_dense": self.options.device_dense,
            "prescale_factor": 1.0 / factor,
            "postscale_factor": factor,
            "process_set": self._process_set,
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
        """Gather the rows of all ranks, which sums them."""
        if self.options.op == native.Adasum:
            raise ValueError(
                "Adasum cannot combine sparse gradients. Received: the gradient of an "
                f"embedding, of {slices.values.dtype.name}. Pass sparse_as_dense=True."
            )
        with tf.device(self.options.device_sparse):
            values, indices = (
                native.allgather(
                    tensor, name=f"{name}_{what}", process_set=self._process_set
                )
                for what, tensor in (
                    ("values", without_bfloat16(slices.values)),
                    ("indices", slices.indices),
                )
            )
            values = tf.cast(values, slices.values.dtype)
            if self.options.op == native.Average:
                size = native.size_op(self._process_set.process_set_id)
                values = values / tf.cast(size, values.dtype)
        return tf.IndexedSlices(values, indices, slices.dense_shape)
