"""Synchronous data parallel training on Horovod, with Horovod's options."""

from typing import Any

from tfdist.collectives.base import FusingCollective
from tfdist.first_step.check import check_choice
from tfdist.gradients.buckets import Groups
from tfdist.gradients.compression import check_compression
from tfdist.gradients.horovod import HorovodReducer, check_horovod_options
from tfdist.gradients.reducer import GradientReducer
from tfdist.rendezvous.roll_call import TIMEOUT_SECONDS
from tfdist.strategies.allreduce import AllReduceStrategy, checked_timeouts
from tfdist.strategies.connecting import connect_horovod
from tfdist.strategies.process_replica import ProcessReplicaExtended


class HorovodStrategy(AllReduceStrategy):
    """`AllReduceStrategy` on Horovod, over Gloo, MPI or NCCL as Horovod was built.

    Start the program with `horovodrun`, `mpirun` or `tfdist run --collective horovod`;
    with plain `python` it is a single process. The options have Horovod's names and
    meanings. With the defaults, N processes end with the weights of one. `op` "sum" and
    "adasum" are different training algorithms.

    Args:
        compression: "none", or "fp16" to send two bytes per element. Default "none".
        op: "average" updates with the gradient of the mean over the global batch. "sum"
            multiplies that by the number of processes. "adasum" averages parallel
            gradients of the processes and adds orthogonal ones; it needs MPI and a
            power of two of processes. Default "average".
        gradient_predivide_factor: The factor by which gradients are divided before the
            sum and multiplied after it, against overflow in small types. Default 1.
        sparse_as_dense: Whether to make sparse gradients (`tf.IndexedSlices`) dense and
            sum them instead of gathering them. Default False.
        num_groups: Horovod's older name for `groups` as a number. Default 0: unset.
        groups: The gradients to send together: a number of groups of neighbours, or
            lists of paths of variables (`variable.path`). All must belong to one
            optimizer; only dense gradients are grouped. Default None: Horovod decides.
        process_set: The ranks that train together, a `tfdist.horovod.ProcessSet` that
            contains this process. Horovod stops for all sets at once, so a process that
            ends waits for the other sets. A process in no set must call
            `tfdist.horovod.join()` before it ends. Default None: all ranks.
        check_first_step: The chief runs the first step after each `compile` again on
            a few rows, whole and in two parts. A difference is a warning ("warn"), an
            error on all ranks ("raise"), or not looked for ("off"). Default "warn".
        start_timeout_seconds: How long to wait for the last process. Default: `tfdist
            run --start-timeout`, or 300.
        timeout_seconds: How long a process may wait for the others in one call. Default
            600.

    Raises:
        ImportError: If Horovod is not installed for this TensorFlow.
        RuntimeError: If Horovod does not connect the processes of the launcher.
        TimeoutError: If a process does not join, or cannot be reached.
        ValueError: If an option is invalid, or conflicts with another.

    Example:
        >>> strategy = HorovodStrategy(op="average")  # doctest: +SKIP

    References:
        Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in
        TensorFlow", 2018.
        Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys
        2021.
    """

    def __init__(
        self,
        *,
        compression: str = "none",
        op: str = "average",
        gradient_predivide_factor: float = 1.0,
        sparse_as_dense: bool = False,
        num_groups: int = 0,
        groups: Groups = None,
        process_set: Any = None,
        check_first_step: str = "warn",
        start_timeout_seconds: float | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        timeouts = checked_timeouts(start_timeout_seconds, timeout_seconds)
        check_compression(compression)
        check_choice(check_first_step)
        groups = _groups(num_groups, groups)
        check_horovod_options(op, gradient_predivide_factor, groups, compression)
        collective = connect_horovod(process_set, **timeouts)
        reducer = GradientReducer(collective)
        if isinstance(collective, FusingCollective):
            reducer = HorovodReducer(
                collective,
                op=op,
                gradient_predivide_factor=gradient_predivide_factor,
                groups=groups,
                sparse_as_dense=sparse_as_dense,
                compression=compression,
            )
        # Other ops than the average are no means over rows.
        choice = check_first_step if op == "average" else "off"
        self._start(ProcessReplicaExtended(self, collective, reducer), choice)


def _groups(num_groups: int, groups: Groups) -> Groups:
    """Return the groups, given by either of the two names."""
    if num_groups < 0 or (num_groups and groups is not None):
        raise ValueError(
            "num_groups must not be negative, and is another name of groups. Received: "
            f"num_groups={num_groups} and groups={groups!r}. Give groups=... only, or "
            "leave both out to let Horovod decide."
        )
    return num_groups or groups
