"""Synchronous data parallel training on Horovod, with Horovod's own options."""

from typing import Any

from tfdist.collectives import FusingCollective
from tfdist.gradients import (
    GradientReducer,
    Groups,
    HorovodReducer,
    check_compression,
    check_horovod_options,
)
from tfdist.rendezvous.roll_call import TIMEOUT_SECONDS, start_timeout
from tfdist.strategies.allreduce import AllReduceStrategy, check_seconds
from tfdist.strategies.connecting import connect_horovod


class HorovodStrategy(AllReduceStrategy):
    """`AllReduceStrategy` on Horovod: over Gloo, MPI or NCCL, as Horovod was built.

    The program is started by `horovodrun`, `mpirun` or `tfdist run --collective
    horovod`; with plain `python` it is one process. The options have Horovod's names
    and meaning. With those that it starts with, N processes end with the weights that
    one ends with; `op` "sum" and "adasum" are other ways to train.

    Args:
        compression: "none"; "fp16" sends two bytes an element. Default "none".
        op: "average" updates with the gradient of the mean over the global batch;
            "sum" with as many times that as there are processes; "adasum" combines the
            gradients of the processes such that parallel ones are averaged and
            orthogonal ones added, which needs MPI and a power of two of processes.
            Default "average".
        gradient_predivide_factor: What gradients are divided by before they are added,
            and multiplied with after, against overflow in few bits. Default 1.
        sparse_as_dense: Whether sparse gradients (`tf.IndexedSlices`) are made dense
            and added instead of gathered. Default False.
        num_groups: Horovod's older name for a number of groups. Default 0: none.
        groups: Gradients that travel together: a number of groups of neighbours, or
            lists of paths of variables (`variable.path`), which exist only after the
            strategy; of those of one optimizer, and with dense gradients. Default
            None: Horovod decides.
        process_set: The ranks that train together, a `tfdist.horovod.ProcessSet` that
            this process belongs to. Horovod stops for all sets at once, so a process
            waits in the end for those of the others; one that is in no set calls
            `tfdist.horovod.join()` before it ends. Default None: all.
        start_timeout_seconds: How long to wait for the last process. Default:
            `tfdist run --start-timeout`, or 300.
        timeout_seconds: How long a process may wait in one call for the others.
            Default 600.

    Raises:
        ImportError: If Horovod is not installed, or not for this TensorFlow.
        RuntimeError: If Horovod does not join the processes that were started.
        TimeoutError: If a process does not come, or cannot be reached.
        TypeError: If the groups are neither a number nor lists of paths; or if the
            process set is none.
        ValueError: If an option is impossible, or does not go with another.

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
        start_timeout_seconds: float | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        start_timeout_seconds = start_timeout(start_timeout_seconds)
        check_seconds("start_timeout_seconds", start_timeout_seconds)
        check_seconds("timeout_seconds", timeout_seconds)
        check_compression(compression)
        groups = _groups(num_groups, groups)
        check_horovod_options(op, gradient_predivide_factor, groups, compression)
        collective = connect_horovod(
            process_set,
            start_timeout_seconds=start_timeout_seconds,
            timeout_seconds=timeout_seconds,
        )
        if not isinstance(collective, FusingCollective):
            self._start(collective, GradientReducer(collective))
            return
        reducer = HorovodReducer(
            collective,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            groups=groups,
            sparse_as_dense=sparse_as_dense,
            compression=compression,
        )
        self._start(collective, reducer)


def _groups(num_groups: int, groups: Groups) -> Groups:
    """Return the groups, whichever of the two names they were given by."""
    if num_groups < 0:
        raise ValueError(
            f"num_groups must not be negative. Received: num_groups={num_groups}. Use "
            "groups=..., or 0 to let Horovod join what is there at the same time."
        )
    if num_groups and groups is not None:
        raise ValueError(
            "num_groups and groups are two names of one option. Received: "
            f"num_groups={num_groups} and groups={groups!r}. Leave num_groups out."
        )
    return num_groups or groups
