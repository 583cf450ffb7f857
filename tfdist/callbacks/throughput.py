"""Throughput: how many examples per second the ranks train on."""

import math
from time import perf_counter
from typing import Any

import keras

from tfdist.callbacks.epoch_line import EpochLine
from tfdist.callbacks.peers import collective_of
from tfdist.scaling import Rate, RateMeter, over_ranks


class Throughput(EpochLine):
    """Logs and prints the examples per second of each epoch.

    Two values are added to the logs of each epoch, the same on every rank:
    `examples_per_second`, over all ranks, and `examples_per_second_per_rank`, its mean.
    Callbacks that come later in the list see them, so put this one before TensorBoard
    and CSVLogger (and before a callback that itself calls `evaluate`). The chief prints
    them, too.

    They tell how fast the steps are when they run: with the wait for input, without
    evaluation, checkpoints and other work between epochs. The first steps of a `fit`,
    in which TensorFlow compiles, are left out, and so is the first step of each other
    epoch, in which the input starts and the ranks wait for each other. The line says
    so. An epoch that holds no other steps has the rate NaN.

    The examples are those that Keras itself counts to weigh its mean loss, whatever the
    input, a short last batch included. A model with a `train_step` or `metrics` of its
    own may count nothing, or steps. Then the first step that counts raises an
    error that asks for `examples_per_step`.

    Args:
        skip_steps: Steps to leave out at the start of each `fit`; 0 counts every step,
            also the first of other epochs. Default 2: the first compiles, the second
            finds caches and connections new.
        examples_per_step: Examples of one step over all ranks, the batch size given to
            `fit`; None to let Keras count. With a number, a short last batch counts as
            a full one. Default None.
        verbose: 1 if the chief prints a line per epoch, 0 if nobody does. Default 1.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> x = keras.ops.ones((100, 4))
        >>> history = model.fit(
        ...     x, x[:, :1], verbose=0, callbacks=[Throughput(verbose=0)]
        ... )
        >>> sorted(history.history)
        ['examples_per_second', 'examples_per_second_per_rank', 'loss']
    """

    def __init__(
        self,
        *,
        skip_steps: int = 2,
        examples_per_step: int | None = None,
        verbose: int = 1,
    ) -> None:
        super().__init__()
        if examples_per_step is not None and examples_per_step <= 0:
            raise ValueError(
                "examples_per_step must be positive. "
                f"Received: examples_per_step={examples_per_step}. "
                "Give the global batch size, or None to let Keras count."
            )
        if verbose not in (0, 1):
            raise ValueError(
                f"verbose must be 0 or 1. Received: verbose={verbose!r}. "
                "Use 1 for a line per epoch, 0 for none."
            )
        self.skip_steps = skip_steps
        self.examples_per_step = examples_per_step
        self.verbose = verbose
        self._meter = RateMeter(skip_steps=skip_steps)
        self._steps = 0
        self._seconds = 0.0
        self._examples: float | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forget an earlier `fit`."""
        self._meter = RateMeter(skip_steps=self.skip_steps)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start to count anew, as Keras does with its metrics."""
        super().on_epoch_begin(epoch, logs)
        self._steps, self._seconds, self._examples = 0, 0.0, None

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Start the clock before the first step that counts."""
        if self._meter.starts_at(batch):
            examples = self._count_examples(batch)
            self._meter.start(batch, examples=examples, seconds=perf_counter())

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Note the time: this may have been the last step of the epoch."""
        self._steps, self._seconds = batch + 1, perf_counter()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Read the examples before the evaluation within `fit` sets them to 0."""
        if self._steps and self._examples is None:
            self._examples = self._count_examples(self._steps)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Put the rates of this epoch into the logs."""
        if self._examples is None:
            self._examples = self._count_examples(self._steps)
        own = self._meter.stop(
            self._steps, examples=self._examples, seconds=self._seconds
        )
        rates = self._exchange(own)
        everyone = over_ranks(rates)
        if logs is not None:
            logs["examples_per_second"] = everyone.examples_per_second
            logs["examples_per_second_per_rank"] = everyone.examples_per_second / len(
                rates
            )
        if self.verbose:
            self._say(_describe(everyone, size=len(rates)))

    def _count_examples(self, steps: int) -> float:
        """Return the examples of this rank in the steps that this epoch has done."""
        if self.examples_per_step is not None:
            return steps * self.examples_per_step / collective_of(self.model).size
        return _counted_by_keras(self.model, steps)

    def _exchange(self, own: Rate) -> list[Rate]:
        """Return every rank's rate, by rank."""
        fields = [own.examples, own.seconds, own.skipped_steps]
        everyone = collective_of(self.model).exchange("throughput", fields)
        return [Rate(*rate) for rate in everyone]


def _counted_by_keras(model: keras.Model, steps: int) -> float:
    """Return the weight of Keras's mean loss: each step adds its rows.

    To read it waits for the device, so it is read twice an epoch and not in every step.
    """
    tracker = next(filter(_is_mean_loss, model.metrics), None)
    # The cast makes a plain tensor also of the variables of TensorFlow's strategies.
    counted = (
        0.0 if tracker is None else float(keras.ops.cast(tracker.count, "float64"))
    )
    counts_rows = tracker is not None and (
        getattr(model.train_step, "__func__", None) is keras.Model.train_step
        and type(model).metrics is keras.Model.metrics
    )
    # A mean of scalars, as in many a custom train_step, weighs each step at most 1.
    if not counts_rows and steps and counted <= steps:
        raise ValueError(
            "examples_per_step must be given for a model whose train_step or metrics "
            "do not count its examples. Received: examples_per_step=None, and a mean "
            f"loss of weight {counted:g} after {steps} steps of {model.name!r}. "
            "Pass the global batch size: Throughput(examples_per_step=64)."
        )
    return counted


def _is_mean_loss(metric: keras.Metric) -> bool:
    """Tell whether a metric is a mean loss whose type can hold a number of rows."""
    return (
        metric.name == "loss"
        and isinstance(metric, keras.metrics.Mean)
        and metric.count.dtype in ("float32", "float64")
    )


def _describe(everyone: Rate, size: int) -> str:
    """Return the line of an epoch."""
    rate = everyone.examples_per_second
    if math.isnan(rate):
        return (
            "examples per second: not measured, because every step of this epoch is "
            "among the first, which are left out (skip_steps=0 counts them)"
        )
    line = f"examples per second: {rate:,.1f}"
    if size > 1:
        line += f" on {size} ranks, {rate / size:,.1f} per rank"
    skipped = everyone.skipped_steps
    if skipped:
        line += f", without the first {'step' if skipped == 1 else f'{skipped} steps'}"
    return line
