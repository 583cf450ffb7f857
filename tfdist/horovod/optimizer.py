"""Wrapping an optimizer, so that it averages its gradients over ranks first."""

import warnings
from typing import Any

import keras

from tfdist.compat.keras import install
from tfdist.compat.keras.own_reduction import remake
from tfdist.horovod.basics import Average, Compression, global_process_set
from tfdist.horovod.options import (
    check_optimizer,
    check_passes,
    local_variables,
    make_reduction,
)
from tfdist.horovod.reducing_optimizer import Wrapping, make_class


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer, so that each step begins with an all-reduce of the gradients.

    All that the optimizer does itself comes after: the finite check of loss scaling,
    clipping, weight decay, accumulation, moving averages. The ranks, each with its part
    of a batch, thus end with the weights of one process that has the whole batch.

    The result is an optimizer of the same class name and the same config. A model that
    is saved with it loads in plain Keras, and then has the plain optimizer. It begins
    anew: iterations and slots of `optimizer` are not taken over. Use `load_model` to
    go on with a saved model.

    Args:
        optimizer: An optimizer of Keras 3, `LossScaleOptimizer` included.
        name: What the operations are called in graphs and timelines. Default None:
            "Distributed" and the name of the class.
        device_dense: Where dense gradients are reduced. Default "": where they are.
        device_sparse: Where sparse gradients are gathered. Default "": where they are.
        compression: `Compression.none` or `Compression.fp16`. Default none.
        sparse_as_dense: Whether to make the sparse gradients of embeddings dense and
            all-reduce them, instead of gathering the rows of all ranks. Default False.
        gradient_predivide_factor: By what the average is divided before the sum; the
            rest is divided after. Default 1.
        op: `Average`, `Sum`, or `Adasum` under MPI. Default `Average`.
        backward_passes_per_step: How many passes are added up on each rank before they
            are communicated and applied; `iterations` counts passes. Default 1.
        average_aggregated_gradients: Whether that sum is divided by the number of
            passes. Default False.
        num_groups: The old name of `groups`. Default 0.
        groups: Which gradients travel in one message: a number of groups, or a list of
            lists of variables. Default None: Horovod fuses what waits at a time.
        process_set: The ranks that take part. Default all.
        scale_local_gradients: Whether the gradients of local variables are divided by
            the number of ranks. Default True.

    Returns:
        The wrapped optimizer. `register_local_var(variable)` leaves a variable's
        gradient to each rank.

    Raises:
        RuntimeError: If this Horovod, or this number of ranks, cannot do Adasum.
        TypeError: If `optimizer` is not an optimizer of Keras 3.
        ValueError: If it is wrapped already, its config does not tell all of its
            arguments, or an argument cannot be honoured.

    Example:
        >>> import keras
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()))
        >>> isinstance(optimizer, keras.optimizers.SGD)
        True
    """
    check_optimizer(optimizer)
    check_passes(backward_passes_per_step, optimizer)
    reduction = make_reduction(
        name=name or f"Distributed{type(optimizer).__name__}",
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        ties_ranks=True,
    )
    wrapping = Wrapping(
        reduction, backward_passes_per_step, average_aggregated_gradients
    )
    return _wrap(optimizer, wrapping)


def PartialDistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    groups: Any = None,
    process_set: Any = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer as `DistributedOptimizer` does, except for some layers.

    Each rank updates those with its own gradients, divided by the number of ranks: they
    may differ between ranks, as the parts of an embedding that is spread over them.

    Args:
        optimizer: As in `DistributedOptimizer`, like all that is not explained here.
        name: As there.
        device_dense: As there.
        device_sparse: As there.
        compression: As there.
        sparse_as_dense: As there.
        gradient_predivide_factor: As there.
        op: As there.
        groups: As there.
        process_set: As there.
        local_layers: A layer, or several, that have been built. Default None: none.
        scale_local_gradients: Whether their gradients are divided by the number of
            ranks. Default True.

    Returns:
        The wrapped optimizer.

    Raises:
        ValueError: If `local_layers` are no layers, or have not been built.

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
    variables = local_variables(local_layers)
    wrapped = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in variables:
        wrapped.register_local_var(variable)
    return wrapped


def _wrap(optimizer: Any, wrapping: Wrapping) -> Any:
    """Make an optimizer of the same config that reduces gradients first."""
    install(is_alone=True)
    if optimizer.built:
        warnings.warn(
            "A distributed optimizer begins anew. Received: "
            f"{optimizer.name}, which has been built and may have been trained with. "
            "Wrap an optimizer before it is used; load_model wraps a saved one "
            "together with its state.",
            RuntimeWarning,
            stacklevel=3,
        )
    return remake(optimizer, make_class(type(optimizer), wrapping))
