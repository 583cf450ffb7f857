"""Starting and stopping Horovod's processes, and connecting their heartbeats."""

import faulthandler
import os
import socket
import sys
import threading
from typing import Any

import horovod.tensorflow as hvd

from tfdist.cluster.model import Membership
from tfdist.cluster.ownership import take_rank
from tfdist.devices import pin
from tfdist.liveness.lifeline import Lifeline, monitor
from tfdist.rendezvous.roll_call import Guest, introduce, meet

# Gloo waits 30 seconds before it considers a peer lost.
_STOP_SECONDS = 40.0
_stopping = threading.Lock()


def start(place: Membership) -> int:
    """Initialize Horovod if the program has not, and return its number of processes.

    On a host with several GPUs, a process uses the GPU of its local rank.
    """
    if not hvd.is_initialized():
        take_rank(place.rank, place.size)
        hvd.init()
    pin(hvd.local_rank(), hvd.local_size())
    size = int(hvd.size())
    if size != place.size:
        built = "with" if hvd.mpi_built() else "without"
        raise RuntimeError(
            "Horovod does not join the processes that were started. Received: "
            f"{place.size} of {place.launcher or 'no launcher'}, {size} of Horovod, "
            f"which is built {built} MPI. Start the program with `tfdist run "
            "--collective horovod` or `horovodrun`; with `mpirun` only if Horovod is "
            "built with MPI."
        )
    return size


def connect(
    process_set: Any, *, start_timeout_seconds: float, timeout_seconds: float
) -> Lifeline:
    """Connect this rank to rank 0 of its set."""
    guests, door = gather_guests(process_set, start_timeout_seconds)
    rank, seconds = process_set.rank(), start_timeout_seconds
    met = meet(rank, guests, door, start_timeout_seconds=seconds)
    return monitor(met, stop, timeout_seconds)


def gather_guests(
    process_set: Any, timeout_seconds: float
) -> tuple[list[Guest], socket.socket | None]:
    """Return the addresses of all ranks, and on rank 0 the listening socket."""
    rank, size = process_set.rank(), process_set.size()
    # Without a timeout, Horovod would wait forever for a rank that does not join.
    is_local = hvd.size() == hvd.local_size()
    guest, door = introduce(rank, hvd.rank(), is_local=is_local)
    reason = (
        "Not every rank takes part in the training. Received: nothing from some of the "
        f"{size} ranks after {timeout_seconds:g} s, on rank {hvd.rank()}. Make the "
        "strategy, or train with the wrapped optimizer, on every one of them: one may "
        "have had no batch, or run another program. If one only comes later, set "
        "TFDIST_START_TIMEOUT to more seconds."
    )
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        stop(reason)

    timer = threading.Timer(timeout_seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        guests: list[Guest] = hvd.allgather_object(
            guest, name="tfdist.guests", process_set=process_set
        )
    except Exception as error:
        if is_late.is_set():
            # Wait for `stop`, because the end of the program stops Horovod, too.
            timer.join()
            raise TimeoutError(reason) from error
        raise
    finally:
        timer.cancel()
    # Horovod matches what eager code sends by its order.
    others = [rank for rank, guest in enumerate(guests) if type(guest) is not Guest]
    if others:
        raise RuntimeError(
            "The ranks make different calls of Horovod. Received: on rank "
            f"{rank}, the first call of tfdist; on rank {others[0]}, an exchange of "
            "something else. Give every rank the same callbacks, and make the same "
            "calls of Horovod in the same order."
        )
    return guests, door


def stop(reason: str) -> None:
    """Shut Horovod down so that every waiting operation fails, or else end the process.

    Horovod stops when all ranks do, or when it notices a lost peer. If neither happens,
    because a peer hangs in MPI, the process prints the reason and exits.
    """
    # Two threads that stop it at once would deadlock.
    with _stopping:
        stopper = threading.Thread(target=hvd.shutdown, daemon=True)
        try:
            stopper.start()
        except RuntimeError:
            return  # The interpreter is exiting: `stop_at_exit` is next.
        stopper.join(_STOP_SECONDS)
        if stopper.is_alive():
            sys.stdout.flush()
            print(
                f"tfdist: Horovod does not stop after {_STOP_SECONDS:g} s, so this "
                f"process ends. {reason}",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)


def stop_at_exit() -> None:
    """Stop Horovod during interpreter exit, when no thread can start."""
    with _stopping:
        # If it hangs, this prints the traceback and ends the process.
        faulthandler.dump_traceback_later(_STOP_SECONDS, exit=True)
        hvd.shutdown()
        faulthandler.cancel_dump_traceback_later()
