"""What the programs that measure have in common: their orders and their report."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfdist.benchmarks.turns import Turn


def report_file(folder: Path, process: int) -> Path:
    """Return the file in which a process leaves what it has measured.

    Args:
        folder: The folder of the benchmark.
        process: The number of the process, over all groups.
    """
    return folder / f"process.{process}.json"


def run_program(measure: Callable[..., Any], arguments: Sequence[str]) -> None:
    """Measure in this process, and leave the result in a file.

    Args:
        measure: Called with this process's `Turn` and the settings; returns what JSON
            can hold.
        arguments: The arguments of the program, as `tfdist.benchmarks.start` gives
            them: the orders as JSON.
    """
    orders = json.loads(arguments[0])
    turn = Turn(orders["port"], group=orders["group"], is_stopped=orders["is_stopped"])
    with turn:
        result = measure(turn, **orders["settings"])
    file = report_file(Path(orders["folder"]), orders["process"])
    file.write_text(json.dumps(result))
