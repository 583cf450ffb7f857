"""Throughput: examples per second of a training run, over all ranks."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, time
from typing import Any

import keras
import tensorflow as tf

from tfdist import __version__
from tfdist.callbacks.metrics_files import EpochMetrics, MetricsFiles
from tfdist.callbacks.ranks import (
    collective_of,
    is_chief_of,
    processes_of,
    servers_of,
    times_of_ranks,
    times_since,
)
from tfdist.cluster.launcher import Launcher
from tfdist.compat.keras.learning_rates import replaces
from tfdist.compat.keras.losses_and_metrics import mean_loss_of
from tfdist.compat.keras.saving import write_atomically
from tfdist.compat.user_warnings import warn_user
from tfdist.devices import wait_for_gpus
from tfdist.mixed_precision import loss_scale
from tfdist.recorder.step_times import StepTimes, mean_waiting
from tfdist.scaling.laws import efficiency
from tfdist.scaling.throughput import (
    EpochRate,
    Rate,
    RateMeter,
    Run,
    over_ranks,
    text_of_run,
)

_NOT_MEASURED = (
    "tfdist: Throughput has not measured this epoch, because all its steps are among "
    "the first of a fit, which it leaves out: skip_steps=0 counts them."
)


class Throughput(keras.callbacks.Callback):
    """Callback that logs the examples per second of each epoch, over all ranks.

    Keras's progress bar shows `examples_per_second`, to three digits, and the History
    has it. It is equal on all ranks. Put the callback before those that read the logs,
    such as TensorBoard and CSVLogger, and before any callback that calls `evaluate`.

    The rate covers the steps, including the wait for input, but not evaluation,
    checkpoints or other work between epochs. It leaves out the first steps of a `fit`,
    in which TensorFlow compiles, and the first step of every other epoch, in which the
    input starts and ranks wait for each other. An epoch without other steps has the
    rate NaN, and the chief prints why.

    Keras counts the examples for its mean loss, a short last batch included. With a
    custom `train_step` or custom `metrics` it may count nothing, or steps: then the
    first counted step raises an error that asks for `examples_per_step`.

    It also writes the files of `tfdist run --metrics-json` and `--metrics-file`, on the
    chief after each epoch. See docs/callbacks.md.

    Args:
        skip_steps: Steps to leave out at the start of each `fit`. 0 counts every step,
            the first of later epochs included. Default 2: the first compiles, the
            second fills caches and opens connections.
        examples_per_step: The global batch size, which then also counts for a short
            last batch. Default None: Keras counts.
        units_per_example: Units per example by name. For example, `{"tokens": 512}`
            logs `tokens_per_second`, over all ranks. Default None.
        alone_examples_per_second: The rate of one process alone. It logs
            `scaling_efficiency`, the fraction of the perfect speed-up. Default None.
        json: Path of a file that the chief writes at the end of each `fit`, for `tfdist
            report`, replacing an earlier file. See docs/scaling.md. Default None.

    Raises:
        OSError: If the folder of `json` cannot be created, or a file of `tfdist run`
            not written, when training begins.
        ValueError: If an argument is out of range.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> x = keras.ops.ones((100, 4))
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[Throughput()])
        >>> sorted(history.history)
        ['examples_per_second', 'loss']
    """

    # None until the examples of an epoch are counted.
    _examples: float | None
    _global_batch_size: int | None

    def __init__(
        self,
        *,
        skip_steps: int = 2,
        examples_per_step: int | None = None,
        units_per_example: Mapping[str, float] | None = None,
        alone_examples_per_second: float | None = None,
        json: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self.skip_steps = skip_steps
        self.examples_per_step = examples_per_step
        self.units_per_example = dict(units_per_example or {})
        self.alone_examples_per_second = alone_examples_per_second
        self.json = json
        _check(self)
        self._reset()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Discard an earlier `fit`, and create the folder of the file."""
        self._reset()
        self._processes = processes_of(self.model)
        # Fail early, not after hours of training.
        if is_chief_of(self.model):
            self._files.begin(EpochMetrics(None, self._processes))
            if self.json is not None:
                Path(self.json).parent.mkdir(parents=True, exist_ok=True)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reset the counts, as Keras does with its metrics."""
        self._steps, self._seconds, self._examples = 0, 0.0, None
        self._began = time()

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Start the clock before the first counted step."""
        if self._meter.starts_at(batch):
            wait_for_gpus()
            examples = self._count_examples(batch)
            # With parameter servers, several steps are in flight.
            if batch and servers_of(self.model) is None:
                # Another step follows, so all earlier batches were full.
                self._full_step = examples / batch
            self._meter.start(batch, examples=examples, seconds=perf_counter())

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Record the time, as this may be the last step of the epoch."""
        self._steps, self._seconds = batch + 1, perf_counter()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Read the number of examples before validation resets it."""
        if self._steps and self._examples is None:
            self._examples = self._count_at_end()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the rates of the epoch to the logs."""
        if self._examples is None:
            self._examples = self._count_at_end()
        own = self._meter.stop(
            self._steps, examples=self._examples, seconds=self._seconds
        )
        fields = [own.examples, own.seconds, own.skipped_steps, self._full_step]
        wanted = self._files.are_wanted
        times = times_since(self.model, self._began) if wanted else None
        of_ranks = collective_of(self.model).exchange("throughput", [fields, times])
        by_rank = [fields for fields, _ in of_ranks]
        if self._global_batch_size is None:
            # 0 if no rank read its count between two steps.
            self._global_batch_size = round(sum(full for *_, full in by_rank)) or None
        total = over_ranks([Rate(*of) for *of, _ in by_rank])
        rate = total.examples_per_second
        self._epochs.append(EpochRate(rate if rate > 0 else None, total.skipped_steps))
        if wanted and is_chief_of(self.model):
            of_steps = times_of_ranks([times for _, times in of_ranks])
            self._write_metrics(epoch, total, of_steps, logs or {})
        if logs is not None:
            logs.update(self._figures(rate))
        if math.isnan(rate) and len(self._epochs) == 1 and is_chief_of(self.model):
            print(_NOT_MEASURED, file=sys.stderr)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Write the file."""
        if self.json is None or not is_chief_of(self.model):
            return
        run = Run(
            processes=self._processes,
            epochs=tuple(self._epochs),
            model=self.model.name,
            global_batch_size=self._global_batch_size,
            units_per_example=self.units_per_example,
            versions={
                "tfdist": __version__,
                "tensorflow": tf.__version__,
                "keras": keras.__version__,
            },
        )
        write_atomically(
            Path(self.json), lambda path: Path(path).write_text(text_of_run(run))
        )

    def _write_metrics(
        self,
        epoch: int,
        total: Rate,
        times: Sequence[StepTimes],
        logs: Mapping[str, Any],
    ) -> None:
        """Write the files that the launcher has asked for."""
        steps = self._steps - total.skipped_steps
        numbers = {name: keras.ops.convert_to_numpy(v) for name, v in logs.items()}
        metrics = EpochMetrics(
            epoch + 1,
            self._processes,
            self._epochs[-1].examples_per_second,
            total.seconds / steps if total.seconds else None,
            mean_waiting(times) if times else None,
            loss_scale(self.model),
            {name: float(v) for name, v in numbers.items() if not v.ndim},
        )
        try:
            self._files.write(metrics)
        except OSError as error:
            # A full disk must not end the training.
            warn_user(f"The metrics of epoch {epoch + 1} are not written: {error}.")

    def _reset(self) -> None:
        """Discard all measurements."""
        self._files = MetricsFiles(Launcher())
        self._meter = RateMeter(skip_steps=self.skip_steps)
        self._epochs: list[EpochRate] = []
        self._processes = 1
        self._full_step = self._began = 0.0
        self._global_batch_size = self.examples_per_step
        self._steps = 0
        self._seconds = 0.0
        self._examples = None

    def _count_at_end(self) -> float:
        """Return the examples of the epoch, once a GPU has done the last step, too."""
        if wait_for_gpus():
            self._seconds = perf_counter()
        return self._count_examples(self._steps)

    def _count_examples(self, steps: int) -> float:
        """Return this rank's examples in the completed steps of the epoch."""
        if self.examples_per_step is not None:
            return steps * self.examples_per_step / collective_of(self.model).size
        return examples_counted(self.model, steps)

    def _figures(self, rate: float) -> dict[str, float]:
        """Return the figures by their names in the logs, to three digits."""
        units = {"examples": 1.0, **self.units_per_example}
        figures = {f"{unit}_per_second": rate * count for unit, count in units.items()}
        alone = self.alone_examples_per_second
        if alone is not None:
            figures["scaling_efficiency"] = (
                efficiency(rate, alone, self._processes) if rate > 0 else math.nan
            )
        return {name: float(f"{figure:.3g}") for name, figure in figures.items()}


def examples_counted(model: keras.Model, steps: int) -> float:
    """Return this process's examples in an epoch's steps, as Keras counts them."""
    # The weight of the mean loss. Reading it waits for the device: do it rarely.
    tracker = mean_loss_of(model)
    # The cast also turns variables of TensorFlow's strategies into plain tensors.
    counted = (
        0.0 if tracker is None else float(keras.ops.cast(tracker.count, "float64"))
    )
    counts_rows = (
        tracker is not None
        and type(model).metrics is keras.Model.metrics
        and not replaces(model, "train_step")
    )
    # A mean of scalars, as in many custom train_steps, weights each step by at most 1.
    if not counts_rows and steps and counted <= steps:
        raise ValueError(
            "examples_per_step must be given for a model whose train_step or metrics "
            "do not count its examples. Received: examples_per_step=None, and a mean "
            f"loss of weight {counted:g} after {steps} steps of {model.name!r}. "
            "Pass the global batch size: Throughput(examples_per_step=64)."
        )
    return counted


def _check(options: Throughput) -> None:
    """Refuse arguments that are out of range."""
    for name in ("examples_per_step", "alone_examples_per_second"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise ValueError(
                f"{name} must be positive. Received: {name}={value}. "
                "Leave it out if it is not known."
            )
    for unit, count in options.units_per_example.items():
        if unit == "examples" or not count > 0:
            raise ValueError(
                "units_per_example must hold positive numbers by names other than "
                f"'examples'. Received: {unit!r}: {count}. "
                "Give the number per example, as in {'tokens': 512}."
            )
