"""Throughput: how many examples per second the ranks train on."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from tfdist.callbacks.epoch_line import EpochLine
from tfdist.callbacks.example_count import counted_by_keras
from tfdist.callbacks.peers import collective_of, is_chief_of
from tfdist.callbacks.run_file import counts_lag, processes_of, write_run
from tfdist.scaling import EpochRate, Rate, RateMeter, efficiency, over_ranks


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
        units_per_example: How many of a unit an example has, by the name of the unit:
            with `{"tokens": 512}` the logs have `tokens_per_second`, over all ranks,
            and the line has it, too. Default none.
        alone_examples_per_second: The rate of one process alone. With it the logs have
            `scaling_efficiency`, the share of the perfect speed-up. Default None.
        json: File that the chief writes when a `fit` ends, for `tfdist report`; that of
            an earlier `fit` is replaced. docs/scaling.md describes it. Default none.

    Raises:
        OSError: If the folder of `json` cannot be made, when training begins.
        ValueError: If an argument is out of range.

    Example:
        >>> import keras
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
        units_per_example: Mapping[str, float] | None = None,
        alone_examples_per_second: float | None = None,
        json: str | os.PathLike[str] | None = None,
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
        _check_figures(units_per_example or {}, alone_examples_per_second)
        self.skip_steps = skip_steps
        self.examples_per_step = examples_per_step
        self.verbose = verbose
        self.units_per_example = dict(units_per_example or {})
        self.alone_examples_per_second = alone_examples_per_second
        self.json = json
        self._meter = RateMeter(skip_steps=skip_steps)
        self._epochs: list[EpochRate] = []
        self._processes = 1
        self._full_step = 0.0
        self._global_batch_size: int | None = None
        self._steps = 0
        self._seconds = 0.0
        self._examples: float | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forget an earlier `fit`, and make the folder of the file."""
        super().on_train_begin(logs)
        self._meter = RateMeter(skip_steps=self.skip_steps)
        self._epochs, self._full_step = [], 0.0
        self._processes = processes_of(self.model)
        self._global_batch_size = self.examples_per_step
        if self.json is not None and is_chief_of(self.model):
            # What cannot be written is to show before hours are spent.
            Path(self.json).parent.mkdir(parents=True, exist_ok=True)

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
            if batch and not counts_lag(self.model):
                # Another step follows: those that are done were no short last batch.
                self._full_step = examples / batch
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
        self._keep(everyone)
        figures = self._figures(everyone)
        if logs is not None:
            logs["examples_per_second"] = everyone.examples_per_second
            logs["examples_per_second_per_rank"] = everyone.examples_per_second / len(
                rates
            )
            logs.update(figures)
        if self.verbose:
            self._say(_describe(everyone, size=len(rates), figures=figures))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Print the last line, and write the file."""
        super().on_train_end(logs)
        if self.json is not None and is_chief_of(self.model):
            write_run(
                self.json,
                self.model,
                self._epochs,
                processes=self._processes,
                global_batch_size=self._global_batch_size,
                units_per_example=self.units_per_example,
            )

    def _count_examples(self, steps: int) -> float:
        """Return the examples of this rank in the steps that this epoch has done."""
        if self.examples_per_step is not None:
            return steps * self.examples_per_step / collective_of(self.model).size
        return counted_by_keras(self.model, steps)

    def _exchange(self, own: Rate) -> list[Rate]:
        """Return every rank's rate, by rank; learn how large a global batch is."""
        fields = [own.examples, own.seconds, own.skipped_steps, self._full_step]
        everyone = collective_of(self.model).exchange("throughput", fields)
        if self._global_batch_size is None:
            # 0 if no rank has read its count between two steps.
            self._global_batch_size = round(sum(full for *_, full in everyone)) or None
        return [Rate(*rate) for *rate, _ in everyone]

    def _keep(self, everyone: Rate) -> None:
        """Keep the rate of an epoch for the file."""
        rate = everyone.examples_per_second
        measured = rate if rate > 0 else None
        self._epochs.append(EpochRate(measured, everyone.skipped_steps))

    def _figures(self, everyone: Rate) -> dict[str, float]:
        """Return what else was asked for, by its name in the logs."""
        rate = everyone.examples_per_second
        figures = {
            f"{unit}_per_second": rate * count
            for unit, count in self.units_per_example.items()
        }
        alone = self.alone_examples_per_second
        if alone is not None:
            figures["scaling_efficiency"] = (
                efficiency(rate, alone, self._processes) if rate > 0 else math.nan
            )
        return figures


def _check_figures(units_per_example: Mapping[str, float], alone: float | None) -> None:
    """Refuse numbers that no rate can be multiplied or compared with."""
    for unit, count in units_per_example.items():
        if unit == "examples" or not count > 0:
            raise ValueError(
                "units_per_example must hold positive numbers by names other than "
                f"'examples'. Received: {unit!r}: {count}. "
                "Give what an example has of it, as in {'tokens': 512}."
            )
    if alone is not None and not alone > 0:
        raise ValueError(
            "alone_examples_per_second must be positive. "
            f"Received: alone_examples_per_second={alone}. "
            "Measure one process first, or leave it out."
        )


def _describe(everyone: Rate, size: int, figures: Mapping[str, float]) -> str:
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
    for name, value in figures.items():
        words = name.replace("_", " ")
        line += f", {words} {value:,.{2 if name == 'scaling_efficiency' else 1}f}"
    skipped = everyone.skipped_steps
    if skipped:
        line += f", without the first {'step' if skipped == 1 else f'{skipped} steps'}"
    return line
