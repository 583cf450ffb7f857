"""Synchronous data parallel training over any collective."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster, detect
from tfdist.cluster.roll_call import START_TIMEOUT_SECONDS, TIMEOUT_SECONDS
from tfdist.collectives import Collective, SingleCollective, TensorFlowCollective
from tfdist.compat.keras import install
from tfdist.gradients import GradientReducer, check_bucket_bytes, check_compression
from tfdist.strategies.process_replica import ProcessReplicaExtended

_COLLECTIVES = ("auto", "tensorflow")


class AllReduceStrategy(tf.distribute.Strategy):  # type: ignore[misc]
    """Trains one replica of the model in each process, on equal weights.

    Every process computes the gradients of its rows of the global batch; the sum over
    all processes updates the weights of each. N processes end with the weights that
    one process ends with, to rounding, and all of them with the same bits.

    Build and compile the model under `scope()`; then `fit`, `evaluate` and `predict`
    take the global batch size and the whole data, as on one process, and give every
    rank the results over all of it. The strategy is made first thing in a program,
    because TensorFlow takes up other processes only while it starts. In a process
    that runs alone it costs nothing.

    Args:
        collective: How the processes talk: "auto" or "tensorflow", which are
            TensorFlow's own collectives, among those of whom the environment tells; or
            a `Collective`. Default "auto".
        bucket_bytes: How many bytes of gradients travel together; 0 sends each by
            itself. Default 25 MiB.
        sparse_as_dense: Whether sparse gradients (`tf.IndexedSlices`) are made dense
            and summed instead of gathered. Default False.
        compression: The type in which float32 and float64 gradients travel: "none" is
            their own; "fp16" and "bf16" take two bytes an element. Default "none".
        start_timeout_seconds: How long to wait for the last process. Default 300.
        timeout_seconds: How long a process may wait in one call for the others;
            longer than any work that one of them does alone. Default 600.

    Raises:
        OSError: If this process cannot listen at its own address.
        RuntimeError: If TensorFlow has already run an operation.
        TimeoutError: If a process is missing when the time is over.
        ValueError: If an argument or the environment is wrong.

    Example:
        >>> import keras, numpy as np
        >>> strategy = AllReduceStrategy()
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...     model.compile(optimizer="sgd", loss="mse")
        >>> history = model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)

    References:
        Goyal et al., "Accurate, Large Minibatch SGD", 2017.
        Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in
        TensorFlow", 2018.
    """

    def __init__(
        self,
        collective: str | Collective = "auto",
        *,
        bucket_bytes: int = 25 * 2**20,
        sparse_as_dense: bool = False,
        compression: str = "none",
        start_timeout_seconds: float = START_TIMEOUT_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        _check_seconds("start_timeout_seconds", start_timeout_seconds)
        _check_seconds("timeout_seconds", timeout_seconds)
        check_bucket_bytes(bucket_bytes)
        check_compression(compression)
        if isinstance(collective, Collective):
            _check_unused(start_timeout_seconds, timeout_seconds)
        else:
            collective = _connect(
                collective,
                detect(),
                start_timeout_seconds=start_timeout_seconds,
                timeout_seconds=timeout_seconds,
            )
        reducer = GradientReducer(
            collective,
            bucket_bytes=bucket_bytes,
            sparse_as_dense=sparse_as_dense,
            compression=compression,
        )
        super().__init__(ProcessReplicaExtended(self, collective, reducer))
        install(is_alone=collective.size == 1)

    @property
    def collective(self) -> Collective:
        """What moves tensors and values between the ranks."""
        collective: Collective = self.extended.collective
        return collective

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Call a function on this process's replica; see `tf.distribute.Strategy.run`.

        Args:
            fn: The function.
            args: Its arguments. Default none.
            kwargs: Its keyword arguments. Default none.
            options: A `tf.distribute.RunOptions`. Default None.

        Returns:
            What the function returns here.
        """

        def call(*args: Any) -> Any:
            return super(AllReduceStrategy, self).run(fn, args, kwargs, options)

        hooks = self.extended.keras_hooks
        if hooks.is_keras_step(fn, args):
            return hooks.run_step(fn, call, args[0])
        self.extended.start_equal()
        return call(*args)


def _connect(name: str, cluster: Cluster, **timeouts: float) -> Collective:
    """Make the collective of that name for a cluster."""
    if name not in _COLLECTIVES:
        raise ValueError(
            f"collective must be one of {', '.join(_COLLECTIVES)}, or a Collective. "
            f"Received: collective={name!r}. Use 'auto' for what fits the environment."
        )
    if not cluster.task.trains:
        raise ValueError(
            "AllReduceStrategy is for the processes that train. Received: a task "
            f"{cluster.task.type!r}. Start the chief and the workers only."
        )
    if cluster.size == 1:
        return SingleCollective()
    return TensorFlowCollective(cluster, **timeouts)


def _check_seconds(name: str, value: float) -> None:
    """Refuse a time that nobody could keep."""
    if not 0 < value < math.inf:
        raise ValueError(
            f"{name} must be positive and finite. Received: {name}={value!r}. "
            "Give the longest time that a healthy job may take."
        )


def _check_unused(start: float, timeout: float) -> None:
    """Refuse what only a collective that is still to be made could honour."""
    if (start, timeout) != (START_TIMEOUT_SECONDS, TIMEOUT_SECONDS):
        raise ValueError(
            "start_timeout_seconds and timeout_seconds are for the collective that the "
            f"strategy makes. Received: start_timeout_seconds={start:g}, "
            f"timeout_seconds={timeout:g} beside a Collective. Give them to the "
            "Collective when you make it."
        )
