"""Program of an estimate that runs the script in a process that trains alone."""

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist.benchmarks.processes import run_program
from tfdist.benchmarks.turns import Turn
from tfdist.cluster import detect
from tfdist.collectives import Collective, SingleCollective
from tfdist.collectives.recorder import Recorder
from tfdist.compat import watching
from tfdist.compat.keras import install
from tfdist.compat.owned_variables import is_divisible, kept_elements, owners_of
from tfdist.compat.watching import unseen
from tfdist.data.sharding import Shard, rows_of
from tfdist.devices import pin
from tfdist.estimate.lone import LoneCollective, LoneFusingCollective
from tfdist.estimate.messages import UPDATE, messages_of, within_epochs
from tfdist.estimate.profile import (
    Memory,
    Profile,
    has_gpu,
    peak_bytes,
    resident_bytes,
)
from tfdist.estimate.start import sizes_file
from tfdist.strategies import AllReduceStrategy, allreduce, connecting, horovod
from tfdist.verify.script import StopTraining, leave_if_threads_would_stay, run_script

# TensorFlow compiles, and finds memory, in the first steps.
_WARM_UP_STEPS = 3
_POLL_SECONDS = 0.01


class Meter:
    """Observer that times the steps of the script, and counts bytes."""

    def __init__(
        self, *, engine: str, ranks: int, processes: int, steps: int, folder: str
    ) -> None:
        self._engine, self._ranks, self._rank = engine, ranks, detect().rank
        self._processes, self._steps, self._folder = processes, steps, folder
        self._profile = Profile(ranks=ranks)
        self._recorder: Any = None
        self._epoch_ends: list[float] = []
        # The steps so far, and this rank's rows of the largest batch.
        self._counts: Any = None
        self._model: Any = None
        self._rows: Any = None
        self._is_in_step = False
        self._optimizer: Any = None
        self._weights: Sequence[Any] = ()
        self._program_bytes = 0
        # The number and the time of the first step that counts.
        self._first, self._began = 0, 0.0
        self._has_ended = False

    def install(self) -> None:
        """Patch TensorFlow, Keras and the strategy."""
        if self._ranks == 1:
            watching.compile_by_scope(AllReduceStrategy)
        watching.watch_run(AllReduceStrategy, self._begin, self._end)
        watching.watch_updates(self._see_update)
        watching.watch_functions(self._stop_if_enough)
        watching.watch_fits(self._see_fit, self._see_epoch_end)
        watching.replace(allreduce, "connect", self._connect)
        for module in (connecting, horovod):
            watching.replace(
                module, "connect_horovod", partial(self._connect, "horovod")
            )

    def finish(self) -> Profile:
        """Return the profile, and leave the bytes of gradients to another program."""
        for state in ("warm", "done"):
            self._all_are(state)  # No other process waits for this one.
        entries = [] if self._recorder is None else self._recorder.entries()
        updates = [
            entry.begin
            for entry in entries
            if entry.name == UPDATE and entry.begin >= self._began
        ][: self._steps + 1]
        profile = self._profile
        if not self._has_ended:
            self._measure_memory()
        profile.step_seconds = within_epochs(updates, self._epoch_ends)
        profile.messages = messages_of(entries, updates, profile.micro_steps)
        profile.rows = 0 if self._counts is None else int(self._counts[1])
        if self._rank == 0:
            text = json.dumps(profile.gradient_bytes)
            Path(sizes_file(self._folder, self._ranks)).write_text(text)
        return profile

    def _connect(self, name: str, *args: Any, **options: Any) -> Collective:
        """Return the collective of a rank that is alone."""
        del args, options
        engine = self._engine
        if name not in ("auto", engine):
            raise ValueError(
                "The script must train over the library that is measured. Received: "
                f"collective={name!r} in the script, and --collective {engine}. Give "
                f"--collective {name}."
            )
        pin(self._rank, self._processes)
        before = resident_bytes()
        self._recorder = Recorder(self._rank, self._ranks)
        with tf.init_scope():
            self._counts = tf.Variable([0, 0], dtype=tf.int64, trainable=False)
        self._profile.runtime_bytes = resident_bytes() - before
        if self._ranks == 1:
            return SingleCollective()
        kind = LoneFusingCollective if engine == "horovod" else LoneCollective
        return kind(
            self._rank,
            self._ranks,
            self._recorder,
            sends_at_once=engine == "mpi",
        )

    def _see_fit(self, steps: int | None) -> None:
        """Note the steps of an epoch."""
        self._profile.steps_of_epoch = steps

    def _see_epoch_end(self) -> None:
        """Note the end of an epoch."""
        self._epoch_ends.append(time.time())

    @unseen
    def _begin(self, fn: Any, args: Sequence[Any]) -> None:
        """Note the begin of a step that is being traced, or run eagerly."""
        model = getattr(fn, "__self__", None)
        self._model = model if isinstance(model, keras.Model) else None
        self._rows = 0
        if args:
            data = args[0]
            self._rows = data.own if isinstance(data, Shard) else rows_of(data)
        if not self._program_bytes:
            known = [] if self._model is None else self._model.variables
            # Some variables are not on the GPU.
            self._program_bytes = max(0, resident_bytes() - _bytes_of(known))
        self._is_in_step = True

    @unseen
    def _end(self) -> None:
        """Note the end of a step."""
        self._is_in_step = False
        self._stop_if_enough()

    @unseen
    def _see_update(self, optimizer: Any, gradients: Any, weights: list[Any]) -> None:
        """Record the time at which all gradients of a step are computed."""
        if not self._is_in_step:
            return
        self._is_in_step = False  # Of nested optimizers, only the outermost counts.
        self._note(optimizer, gradients, weights)
        computed = [getattr(g, "values", g) for g in gradients if g is not None]

        def count() -> Any:
            rows = tf.maximum(self._counts[1], tf.cast(self._rows, tf.int64))
            return self._counts.assign(tf.stack([self._counts[0] + 1, rows]))

        if tf.executing_eagerly():
            with self._recorder.entry(UPDATE):
                count()
            return
        # XLA must not compile it.
        with tf.device("CPU:0"), tf.xla.experimental.jit_scope(compile_ops=False):
            self._recorder.traced(UPDATE, computed, count)

    def _note(self, optimizer: Any, gradients: Any, weights: list[Any]) -> None:
        """Note what is known of an update while it is traced."""
        profile = self._profile
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        profile.micro_steps = getattr(inner, "gradient_accumulation_steps", None) or 1
        profile.weight_bytes = [_size(weight) for weight in weights]
        profile.gradient_bytes = [
            size
            for size, gradient in zip(profile.weight_bytes, gradients, strict=True)
            if isinstance(gradient, tf.Tensor)
        ]
        ranks = self._ranks
        profile.divisible = [
            i for i, v in enumerate(weights) if is_divisible(inner, v, ranks)
        ]
        profile.is_sharded = owners_of(tf.distribute.get_strategy()) is not None
        self._optimizer = optimizer
        self._weights = weights if self._model is None else self._model.variables

    @unseen
    def _stop_if_enough(self) -> None:
        """Stop the script between two of its calls, after enough steps."""
        is_script = threading.current_thread() is threading.main_thread()
        if self._counts is None or not (is_script and tf.executing_eagerly()):
            return
        steps = int(self._counts[0])
        if not self._began:
            if steps >= _WARM_UP_STEPS:
                # The script must not come to its end while others still compile.
                while not self._all_are("warm"):
                    time.sleep(_POLL_SECONDS)
                self._first, self._began = steps, time.time()
        elif steps > self._first + self._steps and self._all_are("done"):
            self._measure_memory()
            self._has_ended = True
            raise StopTraining

    def _all_are(self, state: str) -> bool:
        """Return whether all processes that measure are in a state, as this one is."""
        prefix = f"{state}.{self._ranks}"
        Path(self._folder, f"{prefix}.{self._rank}").touch()
        return len([*Path(self._folder).glob(f"{prefix}.*")]) >= self._processes

    def _measure_memory(self) -> None:
        """Note the bytes of each kind."""
        self._profile.memory = Memory(
            program=self._program_bytes,
            weights=_bytes_of(self._weights),
            optimizer=_bytes_of(getattr(self._optimizer, "variables", ())),
            gradients=sum(self._profile.gradient_bytes),
            peak=peak_bytes(),
            is_of_gpu=has_gpu(),
        )


def _bytes_of(variables: Sequence[Any]) -> int:
    """Return the bytes of variables that this process keeps."""
    return sum(_size(variable) for variable in {id(v): v for v in variables}.values())


def _size(variable: Any) -> int:
    """Return the bytes of a variable that this process keeps."""
    return kept_elements(variable) * int(tf.as_dtype(variable.dtype).size)


def measure(
    turn: Turn, *, command: list[str], module: bool, ranks: int, **options: Any
) -> dict[str, Any]:
    """Run the script under a meter; return the fields of its profile."""
    turn.take()
    # tfdist's own patches come first, so that those of the meter wrap them.
    install(is_alone=ranks == 1)
    meter = Meter(ranks=ranks, **options)
    meter.install()
    run_script(command, module=module)
    return asdict(meter.finish())


if __name__ == "__main__":
    run_program(measure)
    leave_if_threads_would_stay()
