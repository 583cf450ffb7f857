"""`tfdist bench input`: how fast examples come, and whether steps wait for them."""

import argparse
from typing import Any

from tfdist.benchmarks import run_input
from tfdist_cli.bench_options import add_benchmark
from tfdist_cli.parser import Parser
from tfdist_cli.table import format_table

_PIPELINES = {
    "naive": "naive: TFRecordDataset().map().batch()",
    "sequential": "the same, not made parallel by TensorFlow",
    "tuned": "tuned by hand",
    "tfdist": "tfrecord_dataset",
    "cached": "tfrecord_dataset(cache=True), later epochs",
}


def add_input(benchmarks: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of the benchmark of input.

    Args:
        benchmarks: What `add_subparsers` has returned.
    """
    add_benchmark(
        benchmarks,
        "input",
        "input pipelines on JPEG images, and whether steps wait for them",
        ("--cores", "N", int, 2, "cores of the process"),
        ("--examples", "N", int, 512, "images"),
        ("--image-size", "PIXELS", int, 256, "their height and width"),
        ("--batch-size", "N", int, 32, "images of a step"),
        ("--epochs", "N", int, 5, "passes of the run that is reckoned for a cache"),
        ("--repeats", "N", int, 10, "timed passes of each pipeline"),
    ).set_defaults(measure=_measure, size=1, chooses="size", tables={1: input_table})


def input_table(figures: dict[str, Any]) -> str:
    """Make a row for each pipeline, and below it the sentence about the steps.

    Args:
        figures: What `run_input` returns.

    Returns:
        The table.
    """
    rates, trained = (
        figures[name]
        for name in ("examples_per_second", "training_examples_per_second")
    )
    rows = [
        [
            name,
            f"{rates[key]:,.0f}",
            _ratio(figures["speed_against"].get(key)),
            _ratio(figures["run_speed_against"].get(key)),
            f"{trained[key]:,.0f}",
            _share(figures["input"][key]),
        ]
        for key, name in _PIPELINES.items()
    ]
    header = [
        f"examples per second, {figures['cores']} cores",
        "fed",
        "tfrecord_dataset is times as fast",
        f"{figures['epochs']} epochs with cache=True",
        "trained",
        "steps wait",
    ]
    return (
        f"{format_table(header, rows)}\n\n"
        f"The steps alone need {trained['none']:,.0f} examples per second."
    )


def _measure(args: argparse.Namespace) -> Any:
    """Find out what was asked for."""
    return run_input(
        args.cores,
        examples=args.examples,
        image_size=args.image_size,
        batch_size=args.batch_size,
        epochs=args.epochs,
        repeats=args.repeats,
    )


def _ratio(spread: dict[str, float] | None) -> str:
    if spread is None:
        return ""
    return f"{spread['median']:.2f} [{spread['low']:.2f}, {spread['high']:.2f}]"


def _share(verdict: dict[str, Any]) -> str:
    share = max(0.0, verdict["added_share"]["median"])
    return f"{share:.0%}, {'input-bound' if verdict['is_bound'] else 'not input-bound'}"
