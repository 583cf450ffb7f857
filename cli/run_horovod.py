"""The options of `tfdist run` that are Horovod's, under the names of `horovodrun`."""

import argparse
import os
from pathlib import Path

from tfdist.launch import TUNING_OPTIONS, tuning_variables
from tfdist_cli.parser import Parser

_LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


def add_options_of_horovod(parser: Parser) -> None:
    """Add the choice of the collective, and Horovod's tuning.

    Args:
        parser: The parser of `tfdist run`.
    """
    parser.add_argument(
        "--collective",
        choices=("tensorflow", "horovod"),
        default="tensorflow",
        help="what joins the processes (default: tensorflow); with horovod they get "
        "what horovodrun --gloo would give them too",
    )
    group = parser.add_argument_group(
        "tuning of Horovod",
        "Only with --collective horovod; what is left out is Horovod's default.",
    )
    _add_numbers(group)
    _add_options_of_timeline(group)
    group.add_argument(
        "--autotune",
        action="store_true",
        help="let Horovod try out fusion threshold and cycle time, and keep the best",
    )
    group.add_argument(
        "--autotune-log-file", type=_new_file, metavar="FILE", help="what it has tried"
    )
    group.add_argument(
        "--no-stall-check",
        action="store_true",
        help="do not warn when some ranks wait for others",
    )
    group.add_argument(
        "--log-level",
        choices=_LOG_LEVELS,
        help="what Horovod's own log shows (default: WARNING)",
    )


def horovod_variables(args: argparse.Namespace) -> dict[str, str]:
    """Return the variables that carry Horovod's tuning to the processes.

    Args:
        args: What the parser has read.

    Returns:
        The variables, by name.

    Raises:
        ValueError: If a value is impossible, or set twice, or if tuning is given for a
            job that is none of Horovod.
    """
    values = {name: getattr(args, name) for name in TUNING_OPTIONS}
    given = {name: v for name, v in values.items() if v is not None and v is not False}
    variables = tuning_variables(given)
    if variables and args.collective != "horovod":
        options = ", ".join("--" + name.replace("_", "-") for name in given)
        raise ValueError(
            "Horovod's tuning has no effect on TensorFlow's collectives. "
            f"Received: {options}. Add --collective horovod, or leave it out."
        )
    for name, value in args.env:
        if name in variables:
            raise ValueError(
                f"{name} is set twice. Received: --env {name}={value}, and an option "
                f"that sets it to {variables[name]}. Leave one of them out."
            )
    return variables


def _add_numbers(group: "argparse._ArgumentGroup") -> None:
    """Add the options that are numbers."""
    group.add_argument(
        "--fusion-threshold-mb",
        type=int,
        metavar="MB",
        help="how much is sent in one message; 0 sends each tensor by itself "
        "(default: 128)",
    )
    group.add_argument(
        "--cycle-time-ms",
        type=float,
        metavar="MS",
        help="how long to wait for more tensors to send together (default: 1)",
    )
    group.add_argument(
        "--cache-capacity",
        type=int,
        metavar="N",
        help="tensors of which the ranks need not agree again (default: 1024)",
    )
    group.add_argument(
        "--stall-check-warning-time-seconds",
        type=int,
        metavar="SECONDS",
        help="when to warn that some ranks wait for others (default: 60)",
    )
    group.add_argument(
        "--stall-check-shutdown-time-seconds",
        type=int,
        metavar="SECONDS",
        help="when to end the job because of that; 0 is never (default: 0)",
    )


def _add_options_of_timeline(group: "argparse._ArgumentGroup") -> None:
    """Add the options of the timeline."""
    group.add_argument(
        "--timeline",
        "--timeline-filename",
        type=_new_file,
        metavar="FILE",
        help="record what Horovod does and when, for chrome://tracing",
    )
    group.add_argument(
        "--timeline-mark-cycles",
        action="store_true",
        help="mark Horovod's cycles in the timeline",
    )


def _new_file(text: str) -> str:
    """Read the name of a file that Horovod can write, wherever a script goes."""
    path = Path(text).absolute()
    if not text or path.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(
            "it must be a file in a folder that can be written. "
            f"Received: {text!r}. Make the folder first, or choose another place"
        )
    return str(path)
