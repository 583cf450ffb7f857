"""A worker that hangs is noticed: TensorFlow itself would wait for it for ever."""

import threading
import time
import weakref
from contextlib import suppress

import tensorflow as tf

from tfdist.compat.parameter_server import own_executor
from tfdist.rendezvous.watchdog import SILENCE_SECONDS

BEAT_SECONDS = 1.0


class Heartbeat:
    """Asks each worker for a sign of life, every second.

    A worker that has ended is none of its business: TensorFlow notices that at once.

    Args:
        workers: How many workers there are.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._asked_at: list[float | None] = [None] * workers
        stop = threading.Event()
        weakref.finalize(self, stop.set)
        for worker in range(workers):
            threading.Thread(
                target=_beat,
                args=(worker, self._asked_at, stop),
                name=f"tfdist heartbeat {worker}",
                daemon=True,
            ).start()

    def silent(self) -> dict[int, float]:
        """Return the workers that do not answer.

        Returns:
            For how many seconds each has not, by its index; those of less than
            `SILENCE_SECONDS` are left out.
        """
        now = time.monotonic()
        waits = {
            worker: now - asked_at
            for worker, asked_at in enumerate(self._asked_at)
            if asked_at is not None
        }
        return {w: seconds for w, seconds in waits.items() if seconds > SILENCE_SECONDS}


def _beat(worker: int, asked_at: list[float | None], stop: threading.Event) -> None:
    """Ask one worker until the end; it is told in `asked_at` since when in vain."""
    device = f"/job:worker/replica:0/task:{worker}"
    with own_executor(), tf.device(device):
        while not stop.wait(BEAT_SECONDS):
            asked_at[worker] = time.monotonic()
            # One that has ended is waited for by TensorFlow until it comes back.
            with suppress(tf.errors.OpError):
                tf.identity(tf.constant(worker)).numpy()
            asked_at[worker] = None
