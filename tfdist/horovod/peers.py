"""The other ranks of a wrapped optimizer: when one is lost, the others say which."""

import atexit
import sys
from contextlib import suppress
from typing import Any

import tensorflow as tf

from tfdist.cluster.detect import is_elastic
from tfdist.collectives.horovod.peers import (
    gather_guests,
    stop,
    stop_at_exit,
)
from tfdist.horovod.native import native
from tfdist.rendezvous.lifeline import part
from tfdist.rendezvous.roll_call import TIMEOUT_SECONDS, meet, start_timeout

# What Horovod makes of all that ends while gradients are on their way.
_PEER_ERRORS = (tf.errors.UnknownError, tf.errors.AbortedError)
# The peers of this process, by process set.
_tied: dict[Any, "Peers"] = {}


class Peers:
    """Ties the ranks that reduce gradients together; every one of them makes it.

    Horovod itself says only that some rank has gone, or waits for one that hangs.

    Args:
        process_set: The ranks that take part.

    Raises:
        TimeoutError: If one does not come, or cannot be reached.
    """

    def __init__(self, process_set: Any) -> None:
        guests, door = gather_guests(process_set, start_timeout())
        self._lifeline, hub = meet(
            process_set.rank(),
            guests,
            door,
            stop,
            start_timeout_seconds=start_timeout(),
            timeout_seconds=TIMEOUT_SECONDS,
        )
        self._is_everyone = process_set is native.global_process_set
        atexit.register(self._leave, hub)

    def _leave(self, hub: Any) -> None:
        """Say goodbye; if a peer is why the program ends, say which."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, _PEER_ERRORS):
            with suppress(ConnectionError, RuntimeError, TimeoutError):
                self._lifeline.wait_for_failure()
        if error is not None and self._lifeline.failure is not None:
            print(f"tfdist: {self._lifeline.failure.text}", file=sys.stderr, flush=True)
        part(self._lifeline, hub)
        if self._is_everyone or error is not None:
            # Without this rank no other of its set goes on; ranks of other sets may.
            stop_at_exit()


def tie(process_set: Any) -> None:
    """Tie ranks together, if they are several and stay; all of them call it.

    Once is enough, however many optimizers they train with. One that a rank alone has
    made anew, because it has loaded it, must not make that rank wait for the others.

    Args:
        process_set: The ranks that take part.

    Raises:
        TimeoutError: If one does not come, or cannot be reached.
    """
    is_joint = process_set.included() and process_set.size() > 1
    if is_joint and not is_elastic() and process_set not in _tied:
        with tf.init_scope():
            _tied[process_set] = Peers(process_set)
