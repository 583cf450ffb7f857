"""Program of an estimate that runs the script in a process that trains alone."""

import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import keras
import tensorflow as tf

from tfdist.benchmarks.processes import run_program
from tfdist.benchmarks.turns import Turn
from tfdist.collectives.base import Collective
from tfdist.collectives.single import SingleCollective
from tfdist.compat.keras.install import install_for_observers
from tfdist.compat.patching import holding
from tfdist.data.sharding import Shard, rows_of
from tfdist.devices import logical, pin
from tfdist.estimate.lone import LoneCollective, LoneFusingCollective
from tfdist.estimate.prediction import Message, Profile
from tfdist.observing import (
    Observer,
    StopTraining,
    leave_if_threads_would_stay,
    run_observed,
)
from tfdist.recorder.graph import Recorder
from tfdist.recorder.ring import Entry

UPDATE = "update"
# TensorFlow compiles, and finds memory, in the first steps.
_WARM_UP_STEPS = 3
# Gradients that seem to begin in the first part of a step are those of the one before,
# whose update was noted a little earlier.
_EARLY = 0.25


class Meter(Observer):
    """Observer of a simulated rank, which times its steps and counts its bytes."""

    def __init__(self, *, engine: str, ranks: int, steps: int) -> None:
        self._engine, self._ranks, self._steps = engine, ranks, steps
        self._profile = Profile(ranks=ranks)
        # Keras compiles the whole step of one process.
        self.allows_xla = ranks > 1
        self._recorder: Any = None
        self._collective: LoneCollective | None = None
        self._epoch_ends: list[float] = []
        # The steps so far, and this rank's rows of the largest batch.
        self._counts: Any = None
        # The rows of the step that is being traced; None outside and after its update.
        self._rows: Any = None
        # The number and the time of the first step that counts.
        self._first, self._began = 0, 0.0

    def finish(self) -> Profile:
        """Return the profile."""
        entries = [] if self._recorder is None else self._recorder.entries()
        updates = [
            entry.begin
            for entry in entries
            if entry.name == UPDATE and entry.begin >= self._began
        ][: self._steps + 1]
        profile, sent = self._profile, getattr(self._collective, "sent", {})
        profile.step_seconds = within_epochs(updates, self._epoch_ends)
        profile.messages = messages_of(entries, updates, sent, profile.micro_steps)
        profile.rows = 0 if self._counts is None else int(self._counts[1])
        profile.is_of_gpu = bool(logical("GPU"))
        profile.peak_bytes = peak_bytes(is_of_gpu=profile.is_of_gpu)
        return profile

    def connect(self, engine: str) -> Collective:
        """Return the collective of a rank that is alone."""
        if engine not in ("auto", self._engine):
            raise ValueError(
                "The script must train over the library that is measured. Received: "
                f"collective={engine!r} in the script, and --collective "
                f"{self._engine}. Give --collective {engine}."
            )
        pin(0, 1)
        self._recorder = Recorder(0, self._ranks)
        with tf.init_scope():
            self._counts = tf.Variable([0, 0], dtype=tf.int64, trainable=False)
        if self._ranks == 1:
            return SingleCollective()
        kind = LoneFusingCollective if self._engine == "horovod" else LoneCollective
        self._collective = kind(
            self._ranks, self._recorder, sends_at_once=self._engine == "mpi"
        )
        return self._collective

    @contextmanager
    def step(self, fn: Any, args: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Follow a step that is being traced, or run eagerly."""
        self._rows = 0
        if args:
            data = args[0]
            self._rows = data.own if isinstance(data, Shard) else rows_of(data)
        with ExitStack() as stack:
            if self._wants_xla(fn):
                # XLA then compiles what lies between the parts that it must not.
                scope = tf.xla.experimental.jit_scope(separate_compiled_gradients=True)
                stack.enter_context(scope)
            yield args
        self._rows = None
        self.see_return()

    def _wants_xla(self, fn: Any) -> bool:
        """Return whether XLA would compile a step, if it were not observed."""
        model = getattr(fn, "__self__", None)
        if self.allows_xla or tf.executing_eagerly():
            return False
        with holding(self, "allows_xla", True):
            return isinstance(model, keras.Model) and bool(model.jit_compile)

    @tf.autograph.experimental.do_not_convert
    def see_update(self, optimizer: Any, gradients: Any, variables: list[Any]) -> None:
        """Record the time at which all gradients of a step are computed."""
        rows, self._rows = self._rows, None
        if rows is None:  # Of nested optimizers, only the outermost counts.
            return
        if self._collective is not None:
            self._collective.is_updating = True
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        micro_steps = getattr(inner, "gradient_accumulation_steps", None)
        self._profile.micro_steps = micro_steps or 1
        self._profile.gradient_bytes = sum(
            variable.shape.num_elements() * tf.as_dtype(variable.dtype).size
            for variable, gradient in zip(variables, gradients, strict=True)
            if isinstance(gradient, tf.Tensor)
        )
        computed = [getattr(g, "values", g) for g in gradients if g is not None]

        def count() -> Any:
            largest = tf.maximum(self._counts[1], tf.cast(rows, tf.int64))
            return self._counts.assign(tf.stack([self._counts[0] + 1, largest]))

        if tf.executing_eagerly():
            with self._recorder.entry(UPDATE):
                count()
            return
        # XLA must not compile it.
        with tf.device("CPU:0"), tf.xla.experimental.jit_scope(compile_ops=False):
            self._recorder.traced(UPDATE, computed, count)

    def see_updated(self) -> None:
        """Record that no more gradients are sent."""
        if self._collective is not None:
            self._collective.is_updating = False

    def see_epoch_end(self) -> None:
        """Record the end of an epoch."""
        self._epoch_ends.append(time.time())

    @tf.autograph.experimental.do_not_convert
    def see_return(self) -> None:
        """Stop the script between two of its calls, after enough steps."""
        is_script = threading.current_thread() is threading.main_thread()
        if self._counts is None or not (is_script and tf.executing_eagerly()):
            return
        steps = int(self._counts[0])
        if not self._began:
            if steps >= _WARM_UP_STEPS:
                self._first, self._began = steps, time.time()
        elif steps > self._first + self._steps:
            raise StopTraining


def messages_of(
    entries: Sequence[Entry],
    updates: Sequence[float],
    sent: Mapping[str, tuple[str, bool]],
    micro_steps: int,
) -> list[Message]:
    """Return the collectives of an update as they begin, each by its medians.

    A step lasts from one update, whose times are given, to the next. `sent` has the
    kind of each collective, and whether it sends gradients.
    """
    steps = len(updates) - 1
    found: dict[str, list[tuple[float, int]]] = {}
    for entry in entries:
        step = bisect_right(updates, entry.begin) - 1
        if entry.name not in sent or not 0 <= step < steps:
            continue
        part = (entry.begin - updates[step]) / (updates[step + 1] - updates[step])
        if sent[entry.name][1] and part < _EARLY:
            part = 1.0
        found.setdefault(entry.name, []).append((part, entry.size_bytes))
    messages = []
    for name, values in found.items():
        # What is sent less often is of the end of an epoch, for example.
        if len(values) >= steps / micro_steps / 2:
            begins, sizes = zip(*values, strict=True)
            kind, is_gradient = sent[name]
            messages.append(Message(kind, median(sizes), median(begins), is_gradient))
    return sorted(messages, key=lambda message: message.begin)


def within_epochs(updates: Sequence[float], ends: Sequence[float]) -> list[float]:
    """Return the seconds from update to update, but for the last of an epoch.

    All ranks end an epoch together, and it would count as a slow step of one.
    """
    steps = [*pairwise(updates)]
    within = [
        (begin, end)
        for begin, end in steps
        if not any(begin < time < end for time in ends)
    ]
    return [end - begin for begin, end in within or steps]


def peak_bytes(*, is_of_gpu: bool) -> int:
    """Return the most bytes of this process, or of its GPU, that were in memory."""
    if is_of_gpu:
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    # Unlike `ru_maxrss`, without those of the process that started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def measure(
    turn: Turn, *, command: list[str], module: bool, **options: Any
) -> dict[str, Any]:
    """Run the script under a meter; return the fields of its profile."""
    turn.take()
    install_for_observers()
    meter = Meter(**options)
    run_observed(meter, command, module=module)
    return asdict(meter.finish())


if __name__ == "__main__":
    run_program(measure)
    leave_if_threads_would_stay()
