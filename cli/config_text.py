"""Reading and printing that the commands of `tfdist config` share."""

import os
import sys
from pathlib import Path

from tfdist.cluster import Cluster, Task
from tfdist_cli.options import Parser

_NAMES = {
    "chief": ("chief", "chiefs"),
    "worker": ("worker", "workers"),
    "ps": ("parameter server", "parameter servers"),
    "evaluator": ("evaluator", "evaluators"),
}


_HOLDS = "the value of TF_CONFIG"


def add_file_argument(parser: Parser, *, default: str, holds: str = _HOLDS) -> None:
    """Add the argument FILE: where a TF_CONFIG is read."""
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help=f"a file with {holds}, or - for the standard input (default: {default})",
    )


def add_json_argument(parser: Parser, *, instead_of: str) -> None:
    """Add the option --json: the answer for programs."""
    parser.add_argument(
        "--json", action="store_true", help=f"print JSON instead of {instead_of}"
    )


def read_file(file: str, *, option: str = "FILE", holds: str = _HOLDS) -> str:
    """Return the text of a file, or of the standard input."""
    if file == "-":
        return sys.stdin.buffer.read().decode(errors="surrogateescape")
    try:
        return Path(file).read_text(encoding="utf-8", errors="surrogateescape")
    # A name with a null byte is a ValueError.
    except (OSError, ValueError) as error:
        raise OSError(
            f"{option} must be a file that can be read. Received: {file} "
            f"({getattr(error, 'strerror', None) or error}). "
            f"Give the name of one that holds {holds}, or - for the standard input."
        ) from None


def say(text: str) -> None:
    """Print a text, whatever characters somebody has put into TF_CONFIG."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, errors="backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, as after `| head`. Python would report at exit, too, that
        # it could not write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def describe(cluster: Cluster) -> str:
    """Say who is in a cluster, and which of them this process is."""
    if not cluster.jobs:
        return "no addresses; this process trains alone"
    jobs = [
        f"{len(addresses)} {_NAMES[job][len(addresses) > 1]}"
        for job, addresses in cluster.jobs.items()
    ]
    return f"{', '.join(jobs)}; this is {describe_task(cluster)}"


def describe_task(cluster: Cluster) -> str:
    """Say which task a process has, and its rank."""
    if not cluster.task.trains:
        return f"{cluster.task}, which has no rank"
    return f"{cluster.task}, rank {cluster.rank} of {cluster.size}"


def tasks_of(cluster: Cluster) -> list[Task]:
    """Return the tasks of all processes that have an address."""
    return [
        Task(job, index)
        for job, addresses in cluster.jobs.items()
        for index in range(len(addresses))
    ]
