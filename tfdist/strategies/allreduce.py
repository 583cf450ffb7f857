"""Synchronous data parallel training over any collective."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfdist.cluster.launcher import start_timeout
from tfdist.collectives.base import Collective, FusingCollective
from tfdist.experimental.powersgd import PowerSGDReducer
from tfdist.experimental.virtual_ranks import (
    Arithmetic,
    VirtualRankHooks,
    check_ranks,
    check_virtual_ranks,
    fix_threads,
)
from tfdist.first_step.check import check_choice
from tfdist.gradients.buckets import check_bucket_bytes
from tfdist.gradients.compression import POWERSGD_RANKS, check_compression
from tfdist.gradients.horovod import HorovodReducer, check_horovod_options
from tfdist.gradients.reducer import GradientReducer
from tfdist.gradients.tree import TreeReducer
from tfdist.observing import current_observer
from tfdist.rendezvous.roll_call import TIMEOUT_SECONDS
from tfdist.sharding.owners import WeightOwners
from tfdist.strategies.base import StepRunner
from tfdist.strategies.connecting import connect
from tfdist.strategies.process_replica import ProcessReplicaExtended


class AllReduceStrategy(StepRunner):
    """Synchronous data parallel training with one replica of the model per process.

    Each process computes the gradients of its rows of the global batch, and updates its
    weights with the sum over all processes. N processes end with the weights of one
    process, up to rounding, and all ranks have identical bits.

    Build and compile the model under `scope()`. Then `fit`, `evaluate` and `predict`
    take the global batch size and the whole data, as on one process, and return results
    over all of it on every rank. Create the strategy at the start of the program,
    because TensorFlow connects to other processes only while it starts. A process that
    runs alone has no overhead.

    Args:
        collective: The engine that connects the processes. "tensorflow" uses
            TensorFlow's collectives; "mpi" uses MPI, by mpi4py; "horovod" uses Horovod,
            see `HorovodStrategy`;
            "auto" uses MPI if `mpirun`, `srun --mpi=pmix` or, with MPI, `tfdist run`
            has started the processes and mpi4py finds an MPI, Horovod if `horovodrun`
            or `mpirun` has and the program has started Horovod or only that is
            installed, and TensorFlow otherwise. Or a `Collective`. Default "auto".
        bucket_bytes: The size of a bucket of gradients in bytes; 0 sends each gradient
            by itself. Horovod fuses gradients by its own threshold and accepts None
            only. Default None: 25 MiB; with MPI, all gradients together.
        sparse_as_dense: Whether to make sparse gradients (`tf.IndexedSlices`) dense and
            sum them instead of gathering them. Default False.
        compression: The form in which float32 and float64 gradients are sent. "none"
            keeps their own type; "fp16" and "bf16" use two bytes per element, but
            "bf16" four on GPUs over TensorFlow's collectives.
            "powersgd-1", "powersgd" and "powersgd-4", which are experimental, send
            matrices of at least 128 KiB as two factors of 1, 2 or 4 columns, which pays
            on networks below about 1 Gbit/s; each rank keeps what they lack for its
            next step, as many bytes as the gradients. With loss scaling, use a constant
            scale. Horovod has "none" and "fp16". Default "none".
        shard_optimizer: Whether each rank keeps the optimizer's variables, and the
            moving averages of weights, only of those weights that it owns, about the
            same bytes on each rank (ZeRO, stage 1). A rank updates its own weights and
            sends them to all. A weight larger than its share is divided by rows, if the
            optimizer updates each element on its own and has no `clipnorm`. For every
            optimizer that updates each weight on its own; files are those of plain
            Keras, and all ranks must save them. Default False.
        shard_embeddings: The size in bytes from which the table of an `Embedding` is
            divided by rows: each rank keeps some rows, with their optimizer variables
            and averages. A step gets the distinct rows that it looks up from the ranks
            that have them, and sends these the gradients, uncompressed. For optimizers
            that update each row on its own; files are those of plain Keras, and all
            ranks must save and load them. A layer that uses the table otherwise, such
            as a tied output, is an error. Default None: every rank keeps all tables.
        check_first_step: The chief runs the first step after each `compile` again on
            a few rows, whole and in two parts. A difference is a warning ("warn"), an
            error on all ranks ("raise"), or not looked for ("off"). What it cannot see:
            docs/guarantees.md. Default "warn".
        start_timeout_seconds: How long to wait for the last process. Default: `tfdist
            run --start-timeout`, or 300.
        timeout_seconds: How long a process may wait for the others in one call. Must
            exceed the longest work that one process does alone. Default 600.
        virtual_ranks: The number of parts of each global batch, a power of two and a
            multiple of the number of processes. Weights, optimizer variables and
            metrics then have the same bits on 1, 2, 4 or more processes, also after a
            restart on another number. A rank computes its parts one after the other,
            with one intra-op thread, or as many as `tf.config.threading` has been
            given. Gradients are sent dense. What is refused: docs/guarantees.md.
            Default None: equal up to rounding.

    Raises:
        ImportError: If Horovod or MPI is requested but not installed.
        OSError: If this process cannot listen at its own address.
        RuntimeError: If TensorFlow has already run an operation.
        TimeoutError: If a process is missing after `start_timeout_seconds`.
        ValueError: If an argument or the environment is invalid.

    Example:
        >>> import keras, numpy as np
        >>> strategy = AllReduceStrategy()
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...     model.compile(optimizer="sgd", loss="mse")
        >>> history = model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)

    References:
        Goyal et al., "Accurate, Large Minibatch SGD", 2017.
        Rajbhandari et al., "ZeRO: memory optimizations toward training trillion
        parameter models", 2020.
        Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in
        TensorFlow", 2018.
        Or et al., "VirtualFlow: Decoupling Deep Learning Models from the Underlying
        Hardware", MLSys 2022, and Li et al., "EasyScale: Elastic Training with
        Consistent Accuracy and Improved Utilization on GPUs", SC 2023, on
        `virtual_ranks`.
    """

    def __init__(
        self,
        collective: str | Collective = "auto",
        *,
        bucket_bytes: int | None = None,
        sparse_as_dense: bool = False,
        compression: str = "none",
        shard_optimizer: bool = False,
        shard_embeddings: int | None = None,
        check_first_step: str = "warn",
        start_timeout_seconds: float | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        virtual_ranks: int | None = None,
    ) -> None:
        timeouts = checked_timeouts(start_timeout_seconds, timeout_seconds)
        check_bucket_bytes(bucket_bytes or 0)
        check_compression(compression)
        check_choice(check_first_step)
        _check_shard_embeddings(shard_embeddings, virtual_ranks, sparse_as_dense)
        arithmetic = _arithmetic(virtual_ranks, compression, shard_optimizer)
        if collective == "horovod":
            _check_not_for_horovod(bucket_bytes)
            check_horovod_options(compression=compression)
        if isinstance(collective, Collective):
            _check_unused(timeouts)
        else:
            collective = connect(collective, **timeouts)
        if arithmetic is not None:
            extended = _with_virtual_ranks(self, collective, bucket_bytes, arithmetic)
            self._start(extended, "off")
            return
        if isinstance(collective, FusingCollective):
            _check_not_for_horovod(bucket_bytes)
        how = {"sparse_as_dense": sparse_as_dense, "compression": compression}
        reducer = _reducer(collective, bucket_bytes, how)
        extended = ProcessReplicaExtended(self, collective, reducer)
        extended.owners = _owners(extended, shard_optimizer, shard_embeddings)
        self._start(extended, check_first_step)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Call a function in each replica; see `tf.distribute.Strategy.run`."""
        with current_observer().step(fn, args) as seen:
            return super().run(fn, seen, kwargs, options)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any = None
    ) -> Any:
        """Distribute a function's datasets; see `tf.distribute.Strategy`."""
        distribute = super().distribute_datasets_from_function
        return current_observer().datasets(
            lambda function: distribute(function, options), dataset_fn
        )


def _reducer(
    collective: Collective, bucket_bytes: int | None, how: Mapping[str, Any]
) -> GradientReducer:
    """Return the reducer of gradients for a collective and a compression."""
    if isinstance(collective, FusingCollective):
        return HorovodReducer(collective, **how)
    is_thin = how["compression"] in POWERSGD_RANKS
    kind = PowerSGDReducer if is_thin else GradientReducer
    return kind(collective, bucket_bytes=bucket_bytes, **how)


def _arithmetic(
    virtual_ranks: int | None, compression: str, shard_optimizer: bool
) -> Arithmetic | None:
    """Return the arithmetic of virtual ranks, and fix the threads; None without."""
    if virtual_ranks is None:
        return None
    check_virtual_ranks(virtual_ranks, compression, shard_optimizer)
    return Arithmetic(virtual_ranks, fix_threads())


def _owners(
    extended: ProcessReplicaExtended, shard_optimizer: bool, table_bytes: int | None
) -> WeightOwners | None:
    """Return the owners of weights if ranks share optimizers or tables."""
    if extended.collective.size == 1 or not (shard_optimizer or table_bytes):
        return None
    return WeightOwners(
        extended.collective,
        extended.process_hooks.created.forget,
        shards_optimizers=shard_optimizer,
        table_bytes=table_bytes,
    )


def _check_shard_embeddings(
    table_bytes: int | None, virtual_ranks: int | None, sparse_as_dense: bool
) -> None:
    """Raise `ValueError` for a size that is not positive, or with other options."""
    if table_bytes is None:
        return
    # True is an integer, too.
    if type(table_bytes) is not int or table_bytes <= 0:
        raise ValueError(
            "shard_embeddings must be a positive number of bytes, or None. Received: "
            f"shard_embeddings={table_bytes!r}. Use 64 * 2**20 to divide tables of "
            "64 MiB or more."
        )
    if virtual_ranks is not None or sparse_as_dense:
        raise ValueError(
            "shard_embeddings sends single rows to the ranks that have them. Received: "
            f"shard_embeddings={table_bytes} with virtual_ranks={virtual_ranks} and "
            f"sparse_as_dense={sparse_as_dense}. Leave out those that need dense "
            "gradients."
        )


def _with_virtual_ranks(
    strategy: AllReduceStrategy,
    collective: Collective,
    bucket_bytes: int | None,
    arithmetic: Arithmetic,
) -> ProcessReplicaExtended:
    """Return the implementation of a strategy with virtual ranks."""
    check_ranks(arithmetic, collective)
    reducer = TreeReducer(collective, bucket_bytes=bucket_bytes)
    hooks = VirtualRankHooks(collective, reducer, arithmetic)
    if collective.rank == 0:
        print(f"tfdist: {arithmetic} in each process.", file=sys.stderr)
    return ProcessReplicaExtended(strategy, collective, reducer, hooks=hooks)


def checked_timeouts(start: float | None, timeout: float) -> dict[str, float]:
    """Return the timeouts as arguments, after checks; for None, the default."""
    timeouts = {
        "start_timeout_seconds": start_timeout(start),
        "timeout_seconds": timeout,
    }
    for name, value in timeouts.items():
        if not 0 < value < math.inf:
            raise ValueError(
                f"{name} must be positive and finite. Received: {name}={value!r}. "
                "Give the longest time that a healthy job may take."
            )
    return timeouts


def _check_unused(timeouts: dict[str, float]) -> None:
    """Raise `ValueError` if timeouts are given along with a `Collective`."""
    if timeouts != checked_timeouts(None, TIMEOUT_SECONDS):
        raise ValueError(
            "start_timeout_seconds and timeout_seconds are for the collective that the "
            f"strategy makes. Received: {timeouts} together with a Collective. Give "
            "them to the Collective when you make it."
        )


def _check_not_for_horovod(bucket_bytes: int | None) -> None:
    """Raise `ValueError` for a size of buckets, which Horovod does not take."""
    if bucket_bytes is not None:
        raise ValueError(
            "bucket_bytes is not for Horovod, which joins the gradients that are there "
            f"at the same time. Received: bucket_bytes={bucket_bytes}. Use `tfdist run "
            "--fusion-threshold-mb`, or HorovodStrategy(groups=...)."
        )
