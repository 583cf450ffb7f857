"""Options that wrapped optimizers and tapes share, and their checks."""

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.horovod.collective import (
    check_adasum,
    check_process_set,
)
from tfdist.compat.keras.own_reduction import optimizers_in, reduces_by_itself
from tfdist.horovod.native import native
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


def check_passes(passes: int, optimizer: Any) -> None:
    """Refuse a number of passes that is invalid, or conflicts with the optimizer."""
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(
            "backward_passes_per_step must be a positive number. Received: "
            f"backward_passes_per_step={passes!r}. Use 1 to update in every pass."
        )
    counting = ("gradient_accumulation_steps", "use_ema")
    for one, name in itertools.product(optimizers_in(optimizer), counting):
        value = getattr(one, name, None)
        if passes > 1 and value:
            raise ValueError(
                f"backward_passes_per_step does not go with {name} of the optimizer, "
                "which counts steps as it is applied. Received: "
                f"backward_passes_per_step={passes} and {name}={value}. Leave "
                "backward_passes_per_step out and give the optimizer "
                f"gradient_accumulation_steps={passes}, which averages."
            )


def check_optimizer(optimizer: Any) -> None:
    """Refuse an optimizer that cannot be wrapped."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "optimizer must be an optimizer of Keras 3; those of TensorFlow 1 and of "
            f"legacy Keras are gone. Received: optimizer={optimizer!r}. "
            "Pass for example keras.optimizers.SGD(0.01)."
        )
    if reduces_by_itself(optimizer):
        raise ValueError(
            "optimizer must not be wrapped twice: its gradients would be averaged "
            f"twice. Received: {optimizer.name}, which is a distributed optimizer. "
            "Use it as it is."
        )


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
