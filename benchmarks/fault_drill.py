"""Runs with one fault each, judged by the exit code and output of `tfdist run` alone.

Each run trains and meets a fault on some rank in some step. A second one resumes from
its backup, and has to end with the weights of an undisturbed run. The rows "disk full"
and "thin link" need root, and the latter tc.
"""

import hashlib
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from script import is_program, run_script

from tfdist.benchmarks.processes import check_at_least
from tfdist_cli.table import format_table

_STEPS, _EPOCHS, _BATCH, _UNITS = 20, 3, 48, (2000, 16, 1)
# A stall is named after the strategy's timeout, which is 600 s by default.
_TIMEOUT_SECONDS = 10.0
_BAR_SECONDS = 30.0
_MOST_SECONDS = 120.0
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.05
_PAUSE_SECONDS = 0.05
_DISK_BYTES = 8 * 2**20
_DEVICES = Path("/dev/shm")
_LIMIT = "tbf rate {rate} burst 256kb latency 1s"
# TensorFlow removes these files when a process ends in good order.
_OF_TENSORFLOW = "__autograph_generated_file"


def kill(_):
    """End this rank as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop(_):
    """Stop this rank."""
    os.kill(os.getpid(), signal.SIGSTOP)


def hang(_):
    """Wait for ever."""
    threading.Event().wait()


def fail(_):
    """Raise an error of the program."""
    raise ZeroDivisionError("a mistake of the program")


def terminate(_):
    """Ask this rank to stop."""
    os.kill(os.getpid(), signal.SIGTERM)


def evaluate(model):
    """Make a joint call that the other ranks do not make."""
    import numpy as np

    model.evaluate(np.ones((_BATCH, 8)), np.ones((_BATCH, 1)), verbose=0)


def pause(_):
    """Take longer than the other ranks."""
    time.sleep(_PAUSE_SECONDS)


def fill(_):
    """Leave no room on the disk of the backups."""
    with suppress(OSError), open("disk/full", "wb", buffering=0) as file:
        while True:
            file.write(bytes(512))


@dataclass(frozen=True)
class Cause:
    """A fault, and the words by which a user knows it and its rank.

    Args:
        inject: Called on the rank with the model, or with the row that it replaces.
        words: A pattern of the cause, in which "{rank}" is the number of the rank.
        blame: The same for the rank.
        codes: The exit codes.
        where: "step", "input" (of a batch) or "rows".
        lasts: Whether it is called again and again from the first time on.
        rank: The only rank that can have it.
        rate: The rate of the link between all ranks, as tc knows it.
    """

    inject: Callable[[Any], Any]
    words: str
    blame: str = r"^tfdist run: rank {rank} "
    codes: tuple[int, ...] = (1,)
    where: str = "step"
    lasts: bool = False
    rank: int | None = None
    rate: str = ""

    @property
    def needs_root(self):
        """Whether only root can inject it."""
        return self.inject is fill or bool(self.rate)


_HELD_UP = r"^tfdist run: rank {rank} held up the others"
_SLOW = r"rank {rank} takes [\d.]+ times as long as the others, because "
CAUSES = {
    "kill": Cause(kill, "was killed by SIGKILL", codes=(137,)),
    "stop": Cause(stop, "as if it were stopped", codes=(1, 137)),
    "hang in a callback": Cause(hang, r"rank {rank} runs `hang\(\)` at", _HELD_UP),
    "hang in input": Cause(
        hang, r"rank {rank} reads input, `hang\(\)` at", _HELD_UP, where="input"
    ),
    "error": Cause(fail, "ZeroDivisionError: a mistake of the program"),
    "SIGTERM": Cause(terminate, "stopped after", "SIGTERM to rank {rank}:", (143,)),
    "other step": Cause(evaluate, "The ranks are in different calls", "rank {rank} "),
    "different data": Cause(
        lambda row: row + 1,
        "The ranks do not see the same data",
        "the first batch of rank {rank} is not",
        where="rows",
        lasts=True,
    ),
    "disk full": Cause(fill, "No space left on device", rank=0),
    "slow input": Cause(
        pause, f"{_SLOW}it waits", _SLOW, (0,), where="input", lasts=True
    ),
    "slow rank": Cause(pause, f"{_SLOW}its compute", _SLOW, (0,), lasts=True),
    # All ranks have the link.
    "thin link": Cause(
        lambda model: None, "communication limits all ranks", "", (0,), rate="50mbit"
    ),
}


class Fault:
    """The fault of this process, if it is on its rank."""

    def __init__(self, name, rank, step):
        import tfdist

        self.cause = CAUSES[name] if name and tfdist.rank() == rank else None
        self.calls, self.first = 0, step
        if self.cause and self.cause.where == "rows":
            # In the second epoch; ranks compare the first batch of each.
            self.first = _STEPS * _BATCH + 1

    def at(self, where, value):
        """Inject the fault if it is time; return what replaces the value."""
        if self.cause and self.cause.where == where:
            self.calls += 1
            if self.calls == self.first:
                Path("injected").write_text(str(time.time()))
            if self.calls == self.first or (
                self.cause.lasts and self.calls > self.first
            ):
                return self.cause.inject(value)
        return value


def train(orders):
    """Train as one rank, with a fault or without; the chief writes the weights."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    strategy = tfdist.strategies.AllReduceStrategy(
        orders["collective"], timeout_seconds=_TIMEOUT_SECONDS
    )
    fault = Fault(orders["cause"], orders["rank"], orders["step"])

    def rows():
        x = np.random.default_rng(1).normal(size=(_STEPS * _BATCH, 8))
        for number, row in enumerate(x.astype("float32")):
            if number % _BATCH == 0:
                fault.at("input", row)
            row = fault.at("rows", row)
            yield row, row[:1]

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), *map(keras.layers.Dense, _UNITS)])
        model.compile("adam", "mse")
    specs = (tf.TensorSpec((8,)), tf.TensorSpec((1,)))
    data = tf.data.Dataset.from_generator(rows, output_signature=specs)
    steps = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: fault.at("step", model)
    )
    data = data.batch(_BATCH).apply(tf.data.experimental.assert_cardinality(_STEPS))
    model.fit(
        data,
        epochs=_EPOCHS,
        shuffle=False,
        callbacks=[
            tfdist.callbacks.Verdict(),
            tfdist.callbacks.Sentinel(every_steps=5),
            tfdist.callbacks.BackupAndRestore("disk/state", 5),
            steps,
        ],
        verbose=0,
    )
    if tfdist.is_chief():
        weights = b"".join(weight.tobytes() for weight in model.get_weights())
        Path("weights").write_text(hashlib.sha256(weights).hexdigest())


def measure(args):
    """Run the drill; return its figures, and a table with the failures."""
    check_at_least(1, runs=args.runs)
    check_at_least(2, np=args.np)
    draw = random.Random(args.seed)
    names = [name for name in CAUSES if args.only in name]
    names = [name for name in names if os.geteuid() == 0 or not CAUSES[name].needs_root]
    if args.engine == "mpi":  # It uses no link within a host.
        names = [name for name in names if not CAUSES[name].rate]
    if not names:
        raise ValueError(
            "--only must be a part of the name of a cause. "
            f"Received: --only {args.only!r}. The causes are: {', '.join(CAUSES)}."
        )
    wanted, figures = _undisturbed(args), []
    for number in range(args.runs):
        name = names[number % len(names)]
        rank = draw.randrange(args.np)
        rank = CAUSES[name].rank if CAUSES[name].rank is not None else rank
        step = draw.randint(7, _STEPS * (_EPOCHS - 1) - 1)
        figures.append(_drill(args, name, rank, step, wanted))
        print(f"{number + 1}: {_line(figures[-1])}", file=sys.stderr, flush=True)
    return figures, _table(names, figures)


def _undisturbed(args):
    """Return the weights of a run without a fault."""
    with _folder() as folder:
        code, output, _ = _launch(args, folder, "", 0, 0)
        if code != 0:
            raise ValueError(f"The run without a fault has failed: {output}")
        return (folder / "weights").read_text()


def _drill(args, name, rank, step, wanted):
    """Run once with a fault and once more; return what was right."""
    devices = set(_DEVICES.iterdir())
    with _folder() as folder:
        code, output, ended = _launch(args, folder, name, rank, step)
        injected = folder / "injected"
        began = float(injected.read_text()) if injected.exists() else math.nan
        left = _left(folder, devices)
        (folder / "disk" / "full").unlink(missing_ok=True)
        again, later, _ = _launch(args, folder, "", 0, 0)
        weights = folder / "weights"
        is_exact = again == 0 and weights.exists() and weights.read_text() == wanted
    return {
        "cause": name,
        "rank": rank,
        "step": step,
        **judge(name, rank, code, output),
        "seconds": ended - began,
        "left": left,
        "is_exact": is_exact,
        "exit_code": code,
        "output": output if is_exact else f"{output}\nAgain:\n{later}",
    }


def judge(name, rank, code, output):
    """Return whether exit code and output tell a user the cause, and the rank."""
    cause = CAUSES[name]
    says = {
        key: re.search(pattern.replace("{rank}", str(rank)), output, re.MULTILINE)
        for key, pattern in (("cause", cause.words), ("rank", cause.blame))
    }
    is_cause = says["cause"] is not None and code in cause.codes
    return {"is_cause": is_cause, "is_rank": says["rank"] is not None}


def _launch(args, folder, name, rank, step):
    """Run `tfdist run`; return its exit code and output, and the time of its end."""
    orders = {"collective": args.engine, "cause": name, "rank": rank, "step": step}
    words = [Path(sys.executable).with_name("tfdist"), "run", "-np", str(args.np)]
    if args.engine == "mpi":
        words += ["--collective", "mpi"]
    words += [Path(__file__).resolve(), json.dumps(orders)]
    if name and CAUSES[name].rate:
        shell = f'ip link set lo up; tc qdisc add dev lo root {_LIMIT}; exec "$@"'
        rate = CAUSES[name].rate
        words = ["unshare", "-n", "sh", "-c", shell.format(rate=rate), "sh", *words]
    with subprocess.Popen(
        words,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as launcher:
        try:
            output, _ = launcher.communicate(timeout=_MOST_SECONDS)
        except subprocess.TimeoutExpired:
            launcher.kill()
            output = f"{launcher.communicate()[0]}\nIt has not ended."
    return launcher.returncode, output, time.time()


@contextmanager
def _folder():
    """Make a folder for one job, with a small disk for its backups if this is root."""
    with tempfile.TemporaryDirectory(prefix="tfdist-drill-") as name:
        disk = Path(name, "disk")
        disk.mkdir()
        Path(name, "tmp").mkdir()
        is_root = os.geteuid() == 0
        if is_root:
            mount = ("mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "none", disk)
            subprocess.run(mount, check=True)
        try:
            yield Path(name)
        finally:
            if is_root:
                subprocess.run(("umount", disk), check=True)


def _left(folder, devices):
    """Return the processes and files that a job leaves, after some seconds."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while (left := _left_now(folder, devices)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return left


def _left_now(folder, devices):
    """Return the processes in a folder, its temporary files, and new shared memory."""
    files = [str(file) for file in (folder / "tmp").iterdir()]
    left, used = [name for name in files if _OF_TENSORFLOW not in name], set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            used |= {each.path for each in process.memory_maps()}
            # MPI gets the name of its folder in a variable.
            used |= set(process.environ().values())
            if process.cwd() == str(folder):
                left.append(f"process {process.pid} {process.cmdline()[:3]}")
    # Other jobs of this machine use theirs.
    new = [str(path) for path in set(_DEVICES.iterdir()) - devices]
    return left + [name for name in new if not any(name in text for text in used)]


def _is_right(figure):
    """Return whether a user could know cause and rank in time."""
    is_told = figure["is_cause"] and figure["is_rank"]
    return is_told and figure["seconds"] <= _BAR_SECONDS


def _line(figure):
    """Describe one run."""
    bad = [name for name in ("is_cause", "is_rank", "is_exact") if not figure[name]]
    words = f"not {', '.join(bad)}" if bad else "right"
    return (
        f"{figure['cause']}, rank {figure['rank']}, step {figure['step']}: {words}; "
        f"{figure['seconds']:.1f} s; left: {figure['left'] or 'nothing'}"
    )


def _table(names, figures):
    """Return the table by cause, and the output of runs that failed."""
    rows = []
    for name in [*names, ""]:
        its = [figure for figure in figures if name in ("", figure["cause"])]
        counts = [
            sum(bool(figure[key]) for figure in its)
            for key in ("is_cause", "is_rank", "is_exact", "left")
        ]
        seconds = [figure["seconds"] for figure in its] or [math.nan]
        times = f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"
        rows.append([name or "all", *map(str, (len(its), *counts)), times])
    head = ["cause", "runs", "cause said", "rank said", "resumed to the bit"]
    table = format_table([*head, "something left", "seconds: median, most"], rows)
    right = sum(map(_is_right, figures))
    parts = [table, f"{right} of {len(figures)} right within {_BAR_SECONDS:g} s"]
    for figure in figures:
        if not (_is_right(figure) and figure["is_exact"] and not figure["left"]):
            parts.append(f"{_line(figure)}\n{figure['output']}")
    return "\n\n".join(parts)


if __name__ == "__main__":
    if is_program():
        train(json.loads(sys.argv[1]))
    else:
        run_script(
            __doc__,
            [
                ("--runs", 100, "runs, of all causes in turn"),
                ("--engine", ("tensorflow", "mpi"), "what joins the ranks"),
                ("-np", 3, "ranks"),
                ("--seed", 0, "of ranks and steps"),
                ("--only", "", "causes with this text in their names"),
            ],
            measure,
        )
