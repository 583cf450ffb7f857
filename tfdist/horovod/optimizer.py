"""Wrapping a new or loaded optimizer so that it averages gradients over ranks."""

import itertools
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from tfdist.compat.keras.install import install
from tfdist.compat.keras.own_reduction import (
    optimizers_in,
    reduces_by_itself,
    remake,
)
from tfdist.horovod.native import native
from tfdist.horovod.reduction import Reduction, ReductionOptions, local_variables
from tfdist.horovod.wrapped_optimizer import wrapped_class


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = native.Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = native.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = native.global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer so that each step starts with an all-reduce of the gradients.

    The optimizer's own work follows: the finite check of loss scaling, clipping, weight
    decay, accumulation and moving averages. Ranks that share a batch thus get the
    weights of one process with the whole batch.

    The result has the class name and config of the original. A model saved with it
    loads in plain Keras with the plain optimizer. It starts fresh, without the
    iterations and slots of `optimizer`. Use `load_model` to continue with a saved
    model.

    Args:
        optimizer: A Keras 3 optimizer, `LossScaleOptimizer` included.
        name: Name of the operations in graphs and timelines. Default None:
            "Distributed" and the class name.
        device_dense: The device that reduces dense gradients. Default "": their own.
        device_sparse: The device that gathers sparse gradients. Default "": their own.
        compression: `Compression.none` or `Compression.fp16`. Default none.
        sparse_as_dense: Whether to convert sparse gradients of embeddings to dense ones
            and all-reduce them, instead of gathering the rows of all ranks. Default
            False.
        gradient_predivide_factor: The part of the average's divisor that is applied
            before the sum; the rest is applied after it. Default 1.
        op: `Average`, `Sum`, or `Adasum` under MPI. Default `Average`.
        backward_passes_per_step: The number of passes whose gradients each rank sums
            before it sends and applies them; `iterations` counts passes. Default 1.
        average_aggregated_gradients: Whether to divide that sum by the number of
            passes. Default False.
        num_groups: The old name of `groups`. Default 0.
        groups: Gradients to send in one message each: a number of groups, or a list of
            lists of variables. Default None: Horovod fuses gradients that are ready at
            the same time.
        process_set: The ranks that take part. Default all.
        scale_local_gradients: Whether to divide the gradients of local variables by the
            number of ranks. Default True.

    Returns:
        The wrapped optimizer. `register_local_var(variable)` keeps a variable's
        gradient local to its rank.

    Raises:
        TypeError: If `optimizer` is not a Keras 3 optimizer.
        ValueError: If `optimizer` is already wrapped or its config lacks an argument,
            or if an argument cannot be honoured.

    Example:
        >>> import keras
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()))
        >>> isinstance(optimizer, keras.optimizers.SGD)
        True
    """
    arguments = locals()
    _check_optimizer(optimizer)
    _check_passes(backward_passes_per_step, optimizer)
    name = name or f"Distributed{type(optimizer).__name__}"
    options = ReductionOptions.of(arguments, name=name, ties_ranks=True)
    install(is_alone=True)
    if optimizer.built:
        warnings.warn(
            "A distributed optimizer begins anew. Received: "
            f"{optimizer.name}, which has been built and may have been trained with. "
            "Wrap an optimizer before it is used; load_model wraps a saved one "
            "together with its state.",
            RuntimeWarning,
            stacklevel=2,
        )
    return remake(optimizer, wrapped_class(type(optimizer), Reduction(options)))


def PartialDistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = native.Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = native.Average,
    groups: Any = None,
    process_set: Any = native.global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer as `DistributedOptimizer` does, except for some local layers.

    Each rank updates its local layers with its own gradients, divided by the number of
    ranks. Their weights may differ between ranks, as with the shards of a distributed
    embedding.

    Args:
        optimizer: As in `DistributedOptimizer`, like all arguments not explained here.
        name: As there.
        device_dense: As there.
        device_sparse: As there.
        compression: As there.
        sparse_as_dense: As there.
        gradient_predivide_factor: As there.
        op: As there.
        groups: As there.
        process_set: As there.
        local_layers: One or several built layers. Default None.
        scale_local_gradients: Whether to divide their gradients by the number of ranks.
            Default True.

    Returns:
        The wrapped optimizer.

    Raises:
        ValueError: If `local_layers` are not layers, or are not built.

    Example:
        >>> import keras
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> layer = keras.layers.Dense(2)
        >>> layer.build((None, 3))
        >>> optimizer = hvd.PartialDistributedOptimizer(
        ...     keras.optimizers.SGD(), local_layers=layer
        ... )
    """
    arguments = locals()
    variables = local_variables(arguments.pop("local_layers"))
    wrapped = DistributedOptimizer(**arguments)
    for variable in variables:
        wrapped.register_local_var(variable)
    return wrapped


def load_model(
    filepath: str | os.PathLike[str],
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = native.Compression.none,
    legacy_opts: bool = False,
) -> keras.Model:
    """Load a saved model, and wrap its optimizer with `DistributedOptimizer`.

    The optimizer continues with its saved slots, learning rate and step count. The
    model may have been saved with a distributed or a plain optimizer; the files are
    identical. The steps run without XLA, which cannot compile collectives.

    Args:
        filepath: A ".keras" file, or a ".h5" file of a whole model, from which Keras
            reads no slots: they start fresh.
        custom_optimizers: Optimizer classes that Keras does not know. Default None.
        custom_objects: Other classes and functions that Keras does not know, by name.
            Default None.
        compression: `Compression.none` or `Compression.fp16`, for the gradients.
            Default none.
        legacy_opts: Must be False: Keras 3 has no `keras.optimizers.legacy`.

    Returns:
        The compiled model, or an uncompiled one if it was saved without an optimizer.

    Raises:
        ValueError: If `legacy_opts` is True, or Keras cannot read the file.

    Example:
        >>> import tempfile
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> history = model.fit(x, x[:, :1], verbose=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/model.keras")
        ...     loaded = load_model(f"{folder}/model.keras")
        >>> int(loaded.optimizer.iterations.numpy())
        1
    """
    if legacy_opts:
        raise ValueError(
            "legacy_opts must be False, because Keras 3 has no legacy optimizers. "
            f"Received: legacy_opts={legacy_opts!r}. Leave it out, and save the model "
            "under Keras 2 with an optimizer of keras.optimizers."
        )
    known = {one.__name__: one for one in custom_optimizers or ()}
    known |= custom_objects or {}
    model = keras.saving.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        with keras.saving.custom_object_scope(known):
            model.optimizer = _distributed(model.optimizer, model, compression)
        model.jit_compile = False
    return model


def _distributed(optimizer: Any, model: keras.Model, compression: Any) -> Any:
    """Return a wrapped optimizer with the state of a loaded one."""
    config = keras.optimizers.serialize(optimizer)
    fresh = keras.optimizers.deserialize(config)
    wrapped = DistributedOptimizer(fresh, compression=compression)
    if optimizer.built:
        wrapped.build(model.trainable_variables)
        # From an HDF5 file Keras reads only the first variables, without slots.
        pairs = zip(wrapped.variables, optimizer.variables, strict=False)
        for variable, loaded in pairs:
            variable.assign(loaded)
    return wrapped


def _check_passes(passes: int, optimizer: Any) -> None:
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


def _check_optimizer(optimizer: Any) -> None:
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
