"""The options of `tfdist run`, but for those of hosts."""

import argparse
import os
from pathlib import Path

from tfdist.launch import (
    DEFAULT_RESTARTS,
    TUNING_OPTIONS,
    Job,
    Output,
    Restarts,
    tuning_variables,
)
from tfdist_cli.options import Parser

_LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


def add_options_of_size(parser: Parser) -> None:
    """Add the number of processes of each kind."""
    parser.add_argument(
        "-np",
        dest="size",
        type=int,
        metavar="N",
        help="how many processes (required, unless there are parameter servers)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="in place of -np, with --ps: how many workers, not counting the chief",
    )
    parser.add_argument(
        "--ps", type=int, metavar="M", help="how many parameter servers"
    )
    parser.add_argument(
        "--evaluator",
        action="store_true",
        help="with --workers and --ps: one more process, whose task is evaluator, that "
        "evaluates the checkpoints of the chief",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        metavar="R",
        help="how many times workers that fail are started again, all of them together "
        f"(default: {DEFAULT_RESTARTS}); after that the run goes on without them, as "
        "long as one is left",
    )


def add_options_of_restarts(parser: Parser) -> None:
    """Add the options that start a job again after a failure."""
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="K",
        help="how many times the whole job is started again after a failure (default: "
        "0); what is to go on needs a backup, as of tfdist.callbacks.BackupAndRestore",
    )
    parser.add_argument(
        "--min-np",
        dest="min_size",
        type=int,
        metavar="M",
        help="with --max-restarts: go on with as few processes as this when places of "
        "the job stay dead, which have failed first twice in a row without progress "
        "(default: that of -np)",
    )


def add_general_options(parser: Parser) -> None:
    """Add the options of every kind of run."""
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="end the whole run after this time, with exit code 124",
    )
    parser.add_argument(
        "--env",
        type=_variable,
        action="append",
        default=[],
        metavar="K=V",
        help="set a variable in every process; may be repeated",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the command of each process, ready to be pasted into a shell",
    )


def add_options_of_output(parser: Parser) -> None:
    """Add the destinations of the output."""
    parser.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="also write what each process prints to DIR/rank.0.log and so on, or to "
        "DIR/chief.log, DIR/worker.0.log and DIR/ps.0.log",
    )
    parser.add_argument(
        "--no-tag-output",
        dest="tag_output",
        action="store_false",
        help="do not put the rank before each line",
    )


def add_options_of_cores(parser: Parser) -> None:
    """Add the options that share the cores."""
    parser.add_argument(
        "--bind-to",
        choices=("core", "none"),
        help="pin each process to its share of the cores (default: core, if there are "
        "several processes and a core for each; otherwise none)",
    )
    parser.add_argument(
        "--threads-per-process",
        type=int,
        metavar="N",
        help="threads of the numerical libraries (default: the process's share of the "
        "cores, or with --workers that of a worker; TF_NUM_INTRAOP_THREADS, "
        "TF_NUM_INTEROP_THREADS and OMP_NUM_THREADS keep the values that you have set)",
    )


def add_options_of_horovod(parser: Parser) -> None:
    """Add the collective, and Horovod's tuning under the names of `horovodrun`."""
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


def restarts_of(args: argparse.Namespace, job: Job) -> Restarts:
    """Return how often the job may be started again."""
    restarts = Restarts(args.max_restarts, args.min_size)
    restarts.check(job)
    return restarts


def restart_comments(restarts: Restarts) -> list[str]:
    """Return a shell comment about restarts for a dry run, empty without any."""
    if not restarts.max_restarts:
        return []
    line = f"# after a failure: all of them again, up to {restarts.max_restarts} times"
    if restarts.min_size is not None:
        line += f", with -np {restarts.min_size} at least"
    return [line]


def output_of(args: argparse.Namespace) -> Output:
    """Return the destinations of the output; make the folder of its log files."""
    folder = args.output_dir
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                "--output-dir must be a folder or a name for a new one. "
                f"Received: {folder} ({error.strerror}). Choose another place."
            ) from None
    return Output(tag=args.tag_output, directory=folder)


def horovod_variables(args: argparse.Namespace) -> dict[str, str]:
    """Return Horovod's tuning as variables for every process."""
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
    """Add the numbers of Horovod's tuning."""
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
    """Parse the name of a file that Horovod can write, from any working directory."""
    path = Path(text).absolute()
    if not text or path.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(
            "it must be a file in a folder that can be written. "
            f"Received: {text!r}. Make the folder first, or choose another place"
        )
    return str(path)


def _variable(text: str) -> tuple[str, str]:
    """Parse K=V."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(
            f"it must be a name and a value. Received: {text}. Write it as {text}=VALUE"
        )
    return name, value
