"""The speed that parameter servers keep when one worker runs at half speed.

Every worker is stopped half of the time, the slow one three quarters, to share the
cores.
"""

import contextlib
import os
import signal
import threading
import time
from dataclasses import replace

from script import run_script
from server_jobs import JobSetup, pid_file, warm_file

from tfdist.benchmarks.figures import ratio, spread
from tfdist.benchmarks.processes import start
from tfdist_cli.table import format_spread, format_table

_PERIOD_SECONDS = 0.02
_LOOK_SECONDS = 0.1
_SHARE = 0.5
_SLOWED = _SHARE / 2
# So large that computation takes nearly all of a step.
_BATCH_SIZE = 512
_BACKUP = {"consistency": "sync", "backup_workers": 1}
_LABELS = {
    "worker": "async: one worker",
    "slow_worker": "async: one worker of half the speed",
    "both": "async: both",
    "even": "sync, one of three is a backup: all alike",
    "one_slow": "sync, one of three is a backup: one of half the speed",
}


def changes_of(shares, period_seconds):
    """Return (time, pid, signal) of each start and stop in a period, in order."""
    # Staggered, so that they do not all need the cores at once.
    changes = []
    for position, (pid, share) in enumerate(shares.items()):
        begin = position * period_seconds / len(shares)
        end = (begin + share * period_seconds) % period_seconds
        changes += [(begin, pid, signal.SIGCONT), (end, pid, signal.SIGSTOP)]
    return sorted(changes)


@contextlib.contextmanager
def slowed(find):
    """Stop processes for part of each period, once `find` returns their shares."""
    # A process that runs half of the time behaves as on a host of half the speed.
    ended = threading.Event()
    thread = threading.Thread(target=_drive, args=(find, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _drive(find, ended):
    """Wait for the processes, then continue and stop them periodically."""
    while (shares := find()) is None:
        if ended.wait(_LOOK_SECONDS):
            return
    changes = changes_of(shares, _PERIOD_SECONDS)
    begin = time.monotonic()
    while not ended.is_set():
        for seconds, pid, number in changes:
            time.sleep(max(0.0, begin + seconds - time.monotonic()))
            _send(pid, number)
        # Do not shorten the period after a late one.
        begin = max(begin + _PERIOD_SECONDS, time.monotonic() - _PERIOD_SECONDS)
    for pid in shares:
        _send(pid, signal.SIGCONT)


def _send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def measure_all(args):
    """Measure asynchronous training and synchronous training with a backup worker."""
    setup = JobSetup(1, args.ps, args.steps, args.repeats)
    both = (_SHARE, _SLOWED)
    alone = {"worker": both[:1], "slow_worker": both[1:], "both": both}
    even = (_SHARE,) * 3
    backup = {"even": even, "one_slow": (*even[1:], _SLOWED)}
    figures = {
        "async": kept_speed_figures(args.steps, _epochs(setup, alone, {}), "both"),
        "backup": kept_speed_figures(
            args.steps, _epochs(setup, backup, _BACKUP), "one_slow"
        ),
    }
    return figures, _table(figures)


def kept_speed_figures(steps, epochs_of_jobs, whole):
    """Return one job's speed as a share of the summed speed of the other jobs."""
    speeds = {
        name: [steps / epoch["seconds"] for epoch in epochs]
        for name, epochs in epochs_of_jobs.items()
    }
    parts = (values for name, values in speeds.items() if name != whole)
    sums = [sum(each) for each in zip(*parts, strict=True)]
    return {
        "steps_per_second": {name: spread(values) for name, values in speeds.items()},
        "kept_speed": ratio(speeds[whole], sums),
    }


def _epochs(setup, shares, strategy):
    """Run a job for each tuple of shares; return the cost of its epochs."""
    jobs, firsts = [], []
    for name, of_workers in shares.items():
        # The global batch excludes the part of the backup worker.
        parts = len(of_workers) - 1 if strategy else 1
        firsts.append(sum(1 + job.workers + job.ps for job in jobs))
        jobs.append(
            replace(setup, workers=len(of_workers)).job(
                name,
                batch_size=_BATCH_SIZE * parts,
                strategy=strategy,
            )
        )

    def beside(folder):
        stack = contextlib.ExitStack()
        for chief, of_workers in zip(firsts, shares.values(), strict=True):

            def find(chief=chief, of_workers=of_workers):
                if not warm_file(folder, chief).exists():
                    return None
                return {
                    int(pid_file(folder, chief + 1 + index).read_text()): share
                    for index, share in enumerate(of_workers)
                }

            stack.enter_context(slowed(find))
        return stack

    reports = zip(jobs, start(jobs, beside), strict=True)
    return {job.name: report["epochs"] for job, [report] in reports}


def _table(figures):
    rows = []
    for name, kept in (("async", "of the sum"), ("backup", "of those alike")):
        for job, speed in figures[name]["steps_per_second"].items():
            rows.append([_LABELS[job], f"{speed['median']:.1f} steps/s"])
        kept_speed = format_spread(figures[name]["kept_speed"])
        rows.append([f"{name}: speed kept, {kept}", kept_speed])
    return format_table(["a slow worker", "measured"], rows)


if __name__ == "__main__":
    run_script(
        __doc__,
        [
            ("--ps", 1, "how many servers"),
            ("--steps", 120, "steps of a turn"),
            ("--repeats", 8, "timed turns of each job"),
        ],
        measure_all,
    )
