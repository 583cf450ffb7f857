"""Gradient tapes that return gradients reduced over all ranks."""

import functools
from collections.abc import Hashable
from typing import Any, Self

import tensorflow as tf

from tfdist.horovod.native import native
from tfdist.horovod.reduction import Reduction, ReductionOptions, local_variables
from tfdist.horovod.variables import key_of


class ReducingTape:
    """A tape that reduces its gradients over ranks, and delegates the rest."""

    def __init__(self, tape: tf.GradientTape, reduction: Reduction) -> None:
        self._tape, self._reduction = tape, reduction
        self._local_keys: frozenset[Hashable] = frozenset()

    def __enter__(self) -> Self:
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._tape.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def register_local_source(self, source: Any) -> None:
        """Keep the gradient of a variable local to this rank.

        Args:
            source: A Keras or TensorFlow variable.
        """
        self._local_keys |= {key_of(source)}

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> Any:
        """Return the gradients, reduced over all ranks.

        Args:
            target: The value to differentiate.
            sources: Variables or tensors, in any structure.
            output_gradients: As in `tf.GradientTape.gradient`. Default None.
            use_generic_names: No effect: operation names never depend on variable
                names. Default False.

        Returns:
            One gradient per source, in the same structure.
        """
        own = self._tape.gradient(target, sources, output_gradients)
        variables = tf.nest.flatten(sources)
        gradients = tf.nest.flatten(own, expand_composites=False)
        reduced = self._reduction.reduce(gradients, variables, self._local_keys)
        return tf.nest.pack_sequence_as(sources, reduced)


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = native.Compression.none,
    sparse_as_dense: bool = False,
    op: Any = native.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = native.global_process_set,
    scale_local_gradients: bool = True,
) -> ReducingTape:
    """Wrap a gradient tape so that its gradients are averaged over ranks.

    Use it in custom training loops with a plain optimizer; a wrapped optimizer would
    average twice.

    Args:
        gradtape: The tape that records.
        device_dense: As in `DistributedOptimizer`, like all arguments below.
        device_sparse: As there.
        compression: As there.
        sparse_as_dense: As there.
        op: As there.
        gradient_predivide_factor: As there.
        num_groups: As there.
        groups: As there.
        process_set: As there.
        scale_local_gradients: As there.

    Returns:
        A tape. `register_local_source(variable)` keeps a gradient local to its rank.

    Raises:
        ValueError: If an argument cannot be honoured.

    Example:
        >>> import tensorflow as tf
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> x = tf.Variable(3.0)
        >>> with tf.GradientTape() as tape:
        ...     loss = x * x
        >>> float(hvd.DistributedGradientTape(tape).gradient(loss, x))
        6.0
    """
    options = ReductionOptions.of(
        locals(),
        name="DistributedGradientTape",
        # A rank that retraces its step alone creates another tape.
        ties_ranks=False,
    )
    return ReducingTape(gradtape, _shared(options))


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = native.Compression.none,
    sparse_as_dense: bool = False,
    op: Any = native.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = native.global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> ReducingTape:
    """Wrap a gradient tape as `DistributedGradientTape` does, except for some layers.

    Args:
        gradtape: The tape that records.
        device_dense: As in `DistributedOptimizer`, like all not explained here.
        device_sparse: As there.
        compression: As there.
        sparse_as_dense: As there.
        op: As there.
        gradient_predivide_factor: As there.
        num_groups: As there.
        groups: As there.
        process_set: As there.
        local_layers: One or several built layers. Default None.
        scale_local_gradients: Whether to divide their gradients by the number of ranks.
            Default True.

    Returns:
        A tape.

    Raises:
        ValueError: If `local_layers` are not layers, or are not built.

    Example:
        >>> import keras
        >>> import tensorflow as tf
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> layer = keras.layers.Dense(1)
        >>> with tf.GradientTape() as tape:
        ...     loss = layer(tf.ones([1, 2]))
        >>> tape = hvd.PartialDistributedGradientTape(tape, local_layers=layer)
        >>> [g.shape[0] for g in tape.gradient(loss, layer.trainable_weights)]
        [2, 1]
    """
    arguments = locals()
    variables = local_variables(arguments.pop("local_layers"))
    tape = DistributedGradientTape(**arguments)
    for variable in variables:
        tape.register_local_source(variable)
    return tape


@functools.lru_cache
def _shared(options: ReductionOptions) -> Reduction:
    """Return one reduction for equal options, so that eager steps compile it once."""
    return Reduction(options)
