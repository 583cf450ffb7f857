"""Reduction of gradients over ranks, and its options, for optimizers and tapes."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.base import to_tensor
from tfdist.collectives.horovod.collective import check_adasum, check_process_set
from tfdist.collectives.wire_format import by_dtype, without_bfloat16
from tfdist.gradients.buckets import plan_groups
from tfdist.gradients.reducer import weigh
from tfdist.horovod.native import joint_call, native, tie
from tfdist.horovod.variables import key_of


@dataclass(frozen=True)
class ReductionOptions:
    """The arguments of `DistributedOptimizer`, with variable keys in `groups`."""

    name: str
    device_dense: str
    device_sparse: str
    compression: Any
    sparse_as_dense: bool
    gradient_predivide_factor: float
    op: Any
    groups: int | tuple[tuple[Hashable, ...], ...] | None
    process_set: Any
    scale_local_gradients: bool
    # Whether all ranks surely make their first reduction together, to connect then.
    ties_ranks: bool
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Any], **more: Any) -> "ReductionOptions":
        """Select the options among the arguments of a wrapper, and check them."""
        groups = arguments["groups"]
        if groups is None:
            groups = arguments["num_groups"] or None
        given = {**arguments, **more, "groups": _keys_of_groups(groups)}
        names = {field.name for field in fields(cls)} & given.keys()
        options = cls(**{name: given[name] for name in names})
        options.check()
        return options

    def check(self) -> None:
        """Refuse options that Horovod does not have, or that conflict."""
        check_process_set(self.process_set)
        self._check_op()
        factor = self.gradient_predivide_factor
        is_average = self.op == native.Average
        if factor != 1.0 and (not is_average or native.rocm_built() or factor <= 0):
            raise ValueError(
                "gradient_predivide_factor must be positive, goes with op=Average "
                "only, and not with ROCm. Received: "
                f"gradient_predivide_factor={factor!r}, op={self.op!r}. Leave it out."
            )
        functions = ("compress", "decompress")
        if not all(hasattr(self.compression, name) for name in functions):
            raise ValueError(
                "compression must be Compression.none or Compression.fp16, or have "
                f"their functions. Received: compression={self.compression!r}. Leave "
                "it out for none."
            )

    def _check_op(self) -> None:
        """Refuse an operation that this Horovod cannot apply to gradients."""
        if self.op not in (native.Average, native.Sum, native.Adasum):
            raise ValueError(
                "op must be Average, Sum or Adasum. Received: "
                f"op={self.op!r}. Min, Max and Product make no gradients."
            )
        if self.op == native.Adasum:
            check_adasum(self.process_set)
            if self.groups is not None:
                raise ValueError(
                    "Adasum goes without groups. Received: "
                    f"groups={self.groups!r}. Leave them out, or use op=Average."
                )


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
        return tf.cond(
            has_others, lambda: self._reduce(gradients, plan), lambda: gradients
        )

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
            return self._functions[key](gradients)

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


def local_variables(local_layers: Any) -> list[Any]:
    """Return the trainable variables of one layer, of several, or of None."""
    variables: list[Any] = []
    for layer in [] if local_layers is None else tf.nest.flatten(local_layers):
        if not isinstance(layer, keras.Layer) or not layer.built:
            raise ValueError(
                "local_layers must be Keras layers that have been built. Received: "
                f"{layer!r}. Build the model first: give it a keras.Input, or call it "
                "once."
            )
        variables.extend(layer.trainable_weights)
    return variables


def _keys_of_groups(groups: Any) -> int | tuple[tuple[Hashable, ...], ...] | None:
    """Replace the variables in groups by their keys."""
    if groups is None or (isinstance(groups, int) and groups > 0):
        return groups
    if isinstance(groups, list) and all(isinstance(g, Sequence) for g in groups):
        return tuple(tuple(map(key_of, group)) for group in groups)
    raise ValueError(
        "groups must be a positive number, or a list of lists of variables. Received: "
        f"groups={groups!r}. Leave it out for no groups."
    )
