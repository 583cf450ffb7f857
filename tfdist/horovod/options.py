"""What the wrappers of optimizers and tapes accept."""

import itertools
import warnings
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras.own_reduction import optimizers_in, reduces_by_itself
from tfdist.horovod.basics import (
    Adasum,
    Average,
    Sum,
    global_process_set,
    mpi_enabled,
    rocm_built,
    size,
)
from tfdist.horovod.reduction import Reduction, key_of


def make_reduction(*, num_groups: int = 0, groups: Any, **options: Any) -> Reduction:
    """Check the arguments that optimizers and tapes share, and put them together.

    Args:
        num_groups: The old name of `groups`. Default 0: not used.
        groups: How many groups, or the variables of each; None for none.
        **options: The other arguments of `Reduction`.

    Returns:
        How gradients are combined.

    Raises:
        ValueError: If an argument is out of range, or does not go with another.
        RuntimeError: If this Horovod, or this number of ranks, cannot do Adasum.
    """
    if num_groups:
        warnings.warn(
            "num_groups is the old name of groups. Received: "
            f"num_groups={num_groups}. Write groups={num_groups}.",
            DeprecationWarning,
            stacklevel=3,
        )
        groups = num_groups if groups is None else groups
    reduction = Reduction(groups=_keys_of_groups(groups), **options)
    _check_op(reduction)
    _check_predivision(reduction)
    _check_process_set(reduction.process_set)
    _check_compression(reduction.compression)
    for name in ("device_dense", "device_sparse"):
        _check_device(name, getattr(reduction, name))
    return reduction


def check_passes(passes: int, optimizer: Any) -> None:
    """Make sure that gradients can be added up over so many passes.

    Args:
        passes: The argument `backward_passes_per_step`.
        optimizer: Which would be applied once for all of them.

    Raises:
        ValueError: If it is no positive number, or the optimizer counts steps.
    """
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
    """Make sure that an optimizer can be wrapped.

    Args:
        optimizer: What the user gave.

    Raises:
        TypeError: If it is not an optimizer of Keras 3.
        ValueError: If it is wrapped already.
    """
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
    """Return the variables of the layers that each rank has for itself.

    Args:
        local_layers: A Keras layer, several, or None for none.

    Raises:
        ValueError: If it is something else, or a layer has no variables yet.
    """
    if local_layers is None:
        return []
    if isinstance(local_layers, keras.Layer):
        local_layers = [local_layers]
    if not isinstance(local_layers, Iterable):
        local_layers = (local_layers,)
    variables = []
    for layer in local_layers:
        if not isinstance(layer, keras.Layer) or not layer.built:
            raise ValueError(
                "local_layers must be Keras layers that have been built. Received: "
                f"{layer!r}. Build the model first: give it a keras.Input, or call it "
                "once."
            )
        variables.extend(layer.trainable_weights)
    return variables


def _keys_of_groups(groups: Any) -> int | list[list[Hashable]] | None:
    """Return groups with the keys of their variables."""
    if groups is None:
        return None
    if isinstance(groups, int) and groups > 0:
        return groups
    if isinstance(groups, list) and all(isinstance(g, Sequence) for g in groups):
        return [[key_of(variable) for variable in group] for group in groups]
    raise ValueError(
        "groups must be a positive number, or a list of lists of variables. Received: "
        f"groups={groups!r}. Leave it out for no groups."
    )


def _check_op(reduction: Reduction) -> None:
    """Make sure that this Horovod can combine gradients so."""
    if reduction.op not in (Average, Sum, Adasum):
        raise ValueError(
            "op must be Average, Sum or Adasum. Received: "
            f"op={reduction.op!r}. Min, Max and Product make no gradients."
        )
    if reduction.op != Adasum:
        return
    if reduction.groups is not None or reduction.process_set is not global_process_set:
        raise ValueError(
            "Adasum goes without groups and over all ranks only. Received: "
            f"groups={reduction.groups!r}, process_set={reduction.process_set}. Leave "
            "both out, or use op=Average."
        )
    if size() > 1 and (not mpi_enabled() or size() & (size() - 1)):
        controller = "MPI" if mpi_enabled() else "Gloo"
        raise RuntimeError(
            "Adasum needs MPI, and a number of ranks that is a power of two. Received: "
            f"{size()} ranks that talk through {controller}. Start 2, 4, 8, ... of "
            "them with mpirun or horovodrun --mpi, or use op=Average."
        )


def _check_predivision(reduction: Reduction) -> None:
    """Make sure that an average can be divided in two steps."""
    factor = reduction.gradient_predivide_factor
    if factor == 1.0:
        return
    if reduction.op != Average or rocm_built() or factor <= 0:
        raise ValueError(
            "gradient_predivide_factor must be positive, goes with op=Average only, "
            "and not with ROCm. Received: "
            f"gradient_predivide_factor={factor!r}, op={reduction.op!r}. Leave it out."
        )


def _check_process_set(process_set: Any) -> None:
    """Make sure that Horovod knows the process set."""
    if getattr(process_set, "process_set_id", None) is None:
        raise ValueError(
            "process_set must be known to Horovod. Received: "
            f"{process_set}. Give it to init(process_sets=[...]) on every rank first."
        )


def _check_compression(compression: Any) -> None:
    """Make sure that it is one."""
    if not all(hasattr(compression, name) for name in ("compress", "decompress")):
        raise ValueError(
            "compression must be Compression.none or Compression.fp16, or have their "
            f"functions. Received: compression={compression!r}. Leave it out for none."
        )


def _check_device(name: str, device: str) -> None:
    """Make sure that the device exists, which TensorFlow would pass over in silence."""
    if not device:
        return
    spec = tf.DeviceSpec.from_string(device)
    visible = tf.config.get_visible_devices(spec.device_type)
    if spec.device_type and (spec.device_index or 0) >= len(visible):
        raise ValueError(
            f"{name} must be a device that this process sees. Received: "
            f"{name}={device!r} with {len(visible)} of that type. Leave it out to "
            "reduce gradients where they are."
        )
