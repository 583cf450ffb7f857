"""Input and output that the commands of `tfdist config` share."""

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
    """Add the argument FILE, from which a TF_CONFIG is read."""
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help=f"a file with {holds}, or - for the standard input (default: {default})",
    )


def add_json_argument(parser: Parser, *, instead_of: str) -> None:
    """Add the option --json."""
    parser.add_argument(
        "--json", action="store_true", help=f"print JSON instead of {instead_of}"
    )


def read_file(file: str, *, option: str = "FILE", holds: str = _HOLDS) -> str:
    """Read a file, or the standard input for `-`."""
    if file == "-":
        return sys.stdin.buffer.read().decode(errors="surrogateescape")
    try:
        return Path(file).read_text(encoding="utf-8", errors="surrogateescape")
    # A null byte in the name raises ValueError.
    except (OSError, ValueError) as error:
        raise OSError(
            f"{option} must be a file that can be read. Received: {file} "
            f"({getattr(error, 'strerror', None) or error}). "
            f"Give the name of one that holds {holds}, or - for the standard input."
        ) from None


def say(text: str) -> None:
    """Print a text; escape characters that standard output cannot encode."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, errors="backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left, as `| head` does; Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def describe(cluster: Cluster) -> str:
    """Describe a cluster, and the task of this process."""
    if not cluster.jobs:
        return "no addresses; this process trains alone"
    jobs = [
        f"{len(addresses)} {_NAMES[job][len(addresses) > 1]}"
        for job, addresses in cluster.jobs.items()
    ]
    return f"{', '.join(jobs)}; this is {describe_task(cluster)}"


def describe_task(cluster: Cluster) -> str:
    """Describe the task and the rank of this process."""
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
