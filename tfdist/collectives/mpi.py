"""MPI's collectives: shared memory within a host, the cluster's network between."""

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.cluster.launcher import Launcher, start_timeout
from tfdist.cluster.model import Membership
from tfdist.cluster.ownership import take_rank
from tfdist.collectives.monitored import MonitoredCollective
from tfdist.collectives.mpi_transfers import Transfers
from tfdist.collectives.wire_format import from_move, to_move
from tfdist.devices import pin
from tfdist.liveness.lifeline import Lifeline, monitor
from tfdist.rendezvous.roll_call import TIMEOUT_SECONDS, introduce, meet


class MPICollective(MonitoredCollective):
    """A collective of processes started by `mpirun`, `srun --mpi` or `tfdist run`.

    Each operation waits, in Python, until all ranks have begun the same one; MPI then
    moves the data. Operations run in the order of tracing, one at a time.
    """

    # MPI works in the thread that calls it, so it would delay the backward pass.
    sends_at_once = True
    _PEER_ERRORS = (tf.errors.UnknownError,)

    def __init__(
        self,
        *,
        start_timeout_seconds: float | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        seconds = start_timeout(start_timeout_seconds)
        self._transfers = Transfers(load(seconds).COMM_WORLD)
        lifeline = _connect(self._transfers, seconds, timeout_seconds)
        self._transfers.check = lifeline.check
        self._raised: Exception | None = None
        rank, size = self._transfers.rank, self._transfers.size
        super().__init__(rank, size, lifeline)
        self._transfers.recorder = self.recorder

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Mark a section in which ranks may wait; see `Collective.call`."""
        with super().call(what):
            try:
                yield
            except tf.errors.OpError as error:
                raised, self._raised = self._raised, None
                if raised is None:
                    raise
                # TensorFlow's error holds the text of this one, and its traceback.
                raise raised from error

    def _record(self, what: str) -> AbstractContextManager[Any]:
        """Leave the record to the transfer, which knows when all ranks agree."""
        return nullcontext()

    def _leave(self) -> None:
        has_failed = hasattr(sys, "last_value") or self._lifeline.failure is not None
        super()._leave()
        # It waits for all ranks; after a failure, the launcher ends the others.
        if not has_failed:
            self._transfers.finalize()

    def _reduce(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        what = f"all_reduce {name!r} ({reduction}, {tensors[0].dtype.name})"
        return self._run(what, self._transfers.reduce, tensors, reduction)

    def reduce(
        self, tensors: Sequence[Any], root_ranks: Sequence[int], *, name: str
    ) -> list[Any]:
        """Sum each tensor on one rank; see `Collective.reduce`."""
        what = f"reduce {name!r} ({tensors[0].dtype.name})"
        return self._run(what, self._transfers.reduce_to, tensors, root_ranks)

    def share(
        self, tensors: Sequence[Any], root_ranks: Sequence[int], *, name: str
    ) -> list[Any]:
        """Send each tensor from one rank to all; see `Collective.share`."""
        moved = [to_move(tf.convert_to_tensor(tensor)) for tensor in tensors]
        what = f"share {name!r} ({moved[0].dtype.name})"
        shared = self._run(what, self._transfers.share, moved, root_ranks)
        return [from_move(s, t.dtype) for s, t in zip(shared, tensors, strict=True)]

    def _gather(self, tensor: Any, name: str) -> Any:
        what = f"all_gather {name!r} ({tensor.dtype.name})"
        shapes = [[None, *tensor.shape[1:]]]
        return self._run(what, self._transfers.gather, [tensor], shapes=shapes)[0]

    def all_to_all(self, tensor: Any, *, name: str) -> Any:
        """Send each rank its row; see `Collective.all_to_all`."""
        what = f"all_to_all {name!r} ({tensor.dtype.name})"
        received = self._run(what, self._transfers.all_to_all, [to_move(tensor)])[0]
        return from_move(received, tensor.dtype)

    def _broadcast(self, tensors: list[Any], root_rank: int, name: str) -> list[Any]:
        what = f"broadcast {name!r} from rank {root_rank} ({tensors[0].dtype.name})"
        return self._run(what, self._transfers.broadcast, tensors, root_rank)

    def _run(
        self,
        what: str,
        transfer: Callable[..., list[Any]],
        tensors: Sequence[Any],
        *options: Any,
        shapes: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Run a transfer, or add it to the graph."""
        before = [tensor.shape for tensor in tensors]
        call = f"{what} of shapes {before}"
        if tf.executing_eagerly():
            with self.call(call), tf.device("CPU:0"):
                arrays = [np.asarray(tensor.numpy()) for tensor in tensors]
                results = transfer(what, arrays, *options)
                return [tf.convert_to_tensor(result) for result in results]

        def run(*arrays: Any) -> list[Any]:
            try:
                return transfer(what, [*map(np.asarray, arrays[:-1])], *options)
            except Exception as error:
                self._raised = error
                raise

        self.recorder.plan.append(call)
        types = [tensor.dtype for tensor in tensors]
        # XLA cannot compile the operation.
        apart = tf.xla.experimental.jit_scope(compile_ops=False)
        with tf.device("CPU:0"), apart:
            # The record has the number of the step before the transfer is recorded.
            waited_for = [*tensors, self.recorder.step_number]
            results = self._in_turn(lambda: tf.numpy_function(run, waited_for, types))
        after = before if shapes is None else shapes
        return [tf.ensure_shape(*each) for each in zip(results, after, strict=True)]

    def _in_turn(self, make: Callable[[], Any]) -> Any:
        """Add an operation to the graph that runs in the order of tracing.

        That order is the same on all ranks.
        """
        # TensorFlow orders operations that use no variables among themselves, but not
        # with a branch that uses some. So each uses the same variable.
        with tf.control_dependencies(
            [tf.raw_ops.ReadVariableOp(resource=self._turn, dtype=tf.int32)]
        ):
            results = make()
        with tf.control_dependencies(results):
            tf.raw_ops.AssignVariableOp(resource=self._turn, value=0)
        return results

    @functools.cached_property
    def _turn(self) -> Any:
        """The handle of a variable that is no strategy's."""
        with tf.init_scope(), tf.device("CPU:0"):
            handle = tf.raw_ops.VarHandleOp(
                dtype=tf.int32, shape=[], shared_name="tfdist/turn"
            )
            tf.raw_ops.AssignVariableOp(resource=handle, value=0)
            return handle


def load(timeout_seconds: float) -> Any:
    """Start MPI if the program has not, and return the module `MPI` of mpi4py."""
    try:
        import mpi4py

        # Its own end of MPI would wait for ranks that have failed.
        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except Exception as error:
        raise ImportError(
            "collective='mpi' needs mpi4py and an MPI that it can load. Received: "
            f"{type(error).__name__}: {error}. Install both with `pip install "
            "'tfdist[mpi]'`, or mpi4py alone beside the MPI of the cluster."
        ) from error
    if not MPI.Is_initialized():
        _initialize(MPI, timeout_seconds)
    return MPI


def _initialize(mpi: Any, timeout_seconds: float) -> None:
    """Start MPI, which waits until every rank does so."""
    # mpi4py would hold Python's lock meanwhile, even against Ctrl-C.
    begin, given = ctypes.CDLL(mpi.__file__).MPI_Init_thread, ctypes.c_int()
    arguments = None, None, mpi.THREAD_MULTIPLE, ctypes.byref(given)
    thread = threading.Thread(target=begin, args=arguments, daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    if thread.is_alive():
        raise TimeoutError(
            "Not every process that was started starts MPI. Received: no end of "
            f"MPI_Init after {timeout_seconds:g} s. Look at the logs of the others, "
            "and let all of them run the same program."
        )
    for world in (mpi.COMM_WORLD, mpi.COMM_SELF):
        world.Set_errhandler(mpi.ERRORS_RETURN)


def start(member: Membership, timeout_seconds: float | None = None) -> None:
    """Start MPI; on a host with several GPUs, use the GPU of the local rank."""
    take_rank(member.rank, member.size)
    check_ranks(member, timeout_seconds)
    pin(member.local_rank, member.local_size)


def check_ranks(member: Membership, timeout_seconds: float | None = None) -> None:
    """Start MPI, whose rank and number of processes must equal the launcher's."""
    mpi = load(start_timeout(timeout_seconds))
    rank, size = mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size
    if (rank, size) != (member.rank, member.size):
        library = mpi.Get_library_version().split(",")[0].strip("\0\n ")
        launcher = member.mpi_launcher or member.launcher or "no known launcher"
        raise RuntimeError(
            "MPI does not join the processes that were started. Received: rank "
            f"{member.rank} of {member.size} from {launcher}, rank {rank} of {size} "
            f"from mpi4py, which has loaded {library}. Start the program with `tfdist "
            "run --collective mpi` or with the `mpirun` of that MPI, or give "
            "collective='tensorflow'."
        )


def _connect(
    transfers: Transfers, start_timeout_seconds: float, timeout_seconds: float
) -> Lifeline:
    """Connect this rank to rank 0."""
    transfers.wait_for_all(start_timeout_seconds)
    rank = transfers.rank
    guest, door = introduce(rank, rank, is_local=transfers.is_local())
    met = meet(
        rank,
        transfers.gather_objects(guest),
        door,
        start_timeout_seconds=start_timeout_seconds,
    )
    if rank == 0:
        Launcher().note_saved(0)
    return monitor(met, transfers.stop, timeout_seconds)
