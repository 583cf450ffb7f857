"""Signals to stop are for the process that trains."""

import contextlib
import multiprocessing
import os
import signal

from tfdist.callbacks.backup.backup_and_restore import received_stop_signals

SECONDS = 120
# Enough that some are ended before they have run a line of Python.
FORKS = 20


def test_a_signal_after_the_last_step_stops_the_next_fit():
    with received_stop_signals(can_stop=True):
        os.kill(os.getpid(), signal.SIGUSR1)
    ends = contextlib.suppress(SystemExit)
    with ends, received_stop_signals(can_stop=True) as received:
        assert received == ["SIGUSR1"]
        raise SystemExit
    with received_stop_signals(can_stop=True) as received:
        assert received == []


def test_forked_workers_still_end_at_sigterm():
    ends = contextlib.suppress(SystemExit)
    with ends, received_stop_signals(can_stop=True) as received:
        for _ in range(FORKS):
            worker = multiprocessing.get_context("fork").Process(target=signal.pause)
            worker.start()
            try:
                worker.terminate()
                worker.join(SECONDS)
                assert worker.exitcode == -signal.SIGTERM
            finally:
                worker.kill()
        os.kill(os.getpid(), signal.SIGTERM)
        # Else the next `fit` of this process would stop.
        raise SystemExit

    assert received == ["SIGTERM"]
