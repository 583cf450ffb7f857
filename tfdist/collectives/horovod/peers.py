"""How the processes of Horovod start, find each other, and stop."""

import faulthandler
import os
import socket
import sys
import threading
from typing import Any

import horovod.tensorflow as hvd
import psutil

from tfdist.cluster.place import Place
from tfdist.rendezvous.roll_call import Guest, open_door

# Gloo gives a peer 30 seconds before it takes it for lost.
_STOP_SECONDS = 40.0
_stopping = threading.Lock()


def start(place: Place) -> int:
    """Start Horovod, unless the program has, and compare it with what was started.

    Args:
        place: What the launcher tells of this process.

    Returns:
        How many processes Horovod joins.

    Raises:
        RuntimeError: If Horovod joins others than the launcher has started.
    """
    if not hvd.is_initialized():
        hvd.init()
    size = int(hvd.size())
    if size != place.size:
        built = "with" if hvd.mpi_built() else "without"
        raise RuntimeError(
            "Horovod does not join the processes that were started. Received: "
            f"{place.size} of {place.launcher or 'nobody'}, {size} of Horovod, which "
            f"is built {built} MPI. Start the program with `tfdist run --collective "
            "horovod` or `horovodrun`; with `mpirun` only if Horovod is built with MPI."
        )
    return size


def gather_guests(
    process_set: Any, timeout_seconds: float
) -> tuple[list[Guest], socket.socket | None]:
    """Tell the other ranks where this one is, and hear of them.

    Horovod itself would wait for ever.

    Args:
        process_set: The ranks that take part, this one among them.
        timeout_seconds: How long to wait for the last.

    Returns:
        All of them, in the order of their ranks; and the door that rank 0 has opened
        for the others, None on these.

    Raises:
        TimeoutError: If one does not come.
    """
    rank, size = process_set.rank(), process_set.size()
    guest, door = _introduce(rank)
    reason = (
        "Not every rank takes part in the training. Received: nothing from some of the "
        f"{size} ranks after {timeout_seconds:g} s, on rank {hvd.rank()}. Make the "
        "strategy, or train with the wrapped optimizer, on every one of them: one may "
        "have had no batch, or run another program."
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
            # Nor may the end of the program stop Horovod at the same time.
            timer.join()
            raise TimeoutError(reason) from error
        raise
    finally:
        timer.cancel()
    return guests, door


def stop(reason: str) -> None:
    """End every operation of Horovod that waits, now and later, with an error.

    Horovod stops when all ranks do, or when it finds a peer gone. Where neither comes,
    as with a peer that hangs within MPI, only the end of the process is left.

    Args:
        reason: What to tell the user in that case.
    """
    # Two threads that stop it at once would wait for each other.
    with _stopping:
        stopper = threading.Thread(target=hvd.shutdown, daemon=True)
        try:
            stopper.start()
        except RuntimeError:
            return  # The interpreter is going: `stop_at_exit` is next.
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
    """Stop Horovod while the interpreter goes, when no thread can be started."""
    with _stopping:
        # Shows where it hangs, if it does, and ends the process.
        faulthandler.dump_traceback_later(_STOP_SECONDS, exit=True)
        hvd.shutdown()
        faulthandler.cancel_dump_traceback_later()


def _introduce(rank: int) -> tuple[Guest, socket.socket | None]:
    """Say who this process is; on rank 0, open the door for the others."""
    host, pid = socket.gethostname(), os.getpid()
    if rank > 0:
        return Guest(hvd.rank(), host, pid), None
    is_local = hvd.size() == hvd.local_size()
    door, token = open_door(is_local=is_local)
    addresses = ["127.0.0.1"] if is_local else [*_own_addresses(), host]
    port = door.getsockname()[1]
    return Guest(hvd.rank(), host, pid, tuple(addresses), port, token), door


def _own_addresses() -> list[str]:
    """Return the addresses by which other hosts may know this one."""
    return [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    ]
