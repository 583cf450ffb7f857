"""Synchronous data parallel training over any collective."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster, detect
from tfdist.collectives import Collective, SingleCollective, TensorFlowCollective
from tfdist.compat.keras import install
from tfdist.compat.tensorflow import check_not_started
from tfdist.gradients import GradientReducer, check_bucket_bytes
from tfdist.strategies.devices import use_own_gpu
from tfdist.strategies.process_replica import ProcessReplicaExtended

_COLLECTIVES = ("auto", "tensorflow")
_START_TIMEOUT_SECONDS = 300.0
_TIMEOUT_SECONDS = 600.0


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
            TensorFlow's own collectives, or a `Collective`. Default "auto".
        bucket_bytes: How many bytes of gradients travel together; 0 sends each by
            itself. Default 25 MiB.
        sparse_as_dense: Whether sparse gradients (`tf.IndexedSlices`) are made dense
            and summed instead of gathered. Default False.
        cluster: Who is in the job. Default None: what the environment says.
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
        cluster: Cluster | None = None,
        start_timeout_seconds: float = _START_TIMEOUT_SECONDS,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> None:
        _check_seconds("start_timeout_seconds", start_timeout_seconds)
        _check_seconds("timeout_seconds", timeout_seconds)
        check_bucket_bytes(bucket_bytes)
        if isinstance(collective, Collective):
            _check_unused(cluster, start_timeout_seconds, timeout_seconds)
        else:
            collective = _connect(
                collective,
                detect() if cluster is None else cluster,
                start_timeout_seconds=start_timeout_seconds,
                timeout_seconds=timeout_seconds,
            )
        reducer = GradientReducer(
            collective, bucket_bytes=bucket_bytes, sparse_as_dense=sparse_as_dense
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
    check_not_started()
    use_own_gpu(cluster.local_rank, cluster.local_size)
    return TensorFlowCollective(cluster, **timeouts)


def _check_seconds(name: str, value: float) -> None:
    """Refuse a time that nobody could keep."""
    if not 0 < value < math.inf:
        raise ValueError(
            f"{name} must be positive and finite. Received: {name}={value!r}. "
            "Give the longest time that a healthy job may take."
        )


def _check_unused(cluster: Cluster | None, start: float, timeout: float) -> None:
    """Refuse what only a collective that is still to be made could honour."""
    if (cluster, start, timeout) != (None, _START_TIMEOUT_SECONDS, _TIMEOUT_SECONDS):
        raise ValueError(
            "cluster, start_timeout_seconds and timeout_seconds are for the collective "
            f"that the strategy makes. Received: cluster={cluster}, "
            f"start_timeout_seconds={start:g}, timeout_seconds={timeout:g} beside a "
            "Collective. Give them to the Collective when you make it."
        )
