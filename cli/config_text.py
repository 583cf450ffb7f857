"""What the commands of `tfdist config` read and print alike."""

import os
import sys
from pathlib import Path

from tfdist.cluster import Cluster, Task
from tfdist_cli.parser import Parser

_NAMES = {
    "chief": ("chief", "chiefs"),
    "worker": ("worker", "workers"),
    "ps": ("parameter server", "parameter servers"),
    "evaluator": ("evaluator", "evaluators"),
}


_HOLDS = "the value of TF_CONFIG"


def add_file_argument(parser: Parser, *, default: str, holds: str = _HOLDS) -> None:
    """Add the argument FILE: where a TF_CONFIG is read.

    Args:
        parser: The parser of a command.
        default: What is read without it, for the help.
        holds: What should be in it, for the help. Default "the value of TF_CONFIG".
    """
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help=f"a file with {holds}, or - for the standard input (default: {default})",
    )


def add_json_argument(parser: Parser, *, instead_of: str) -> None:
    """Add the option --json: the answer for programs.

    Args:
        parser: The parser of a command.
        instead_of: What is printed without it, for the help.
    """
    parser.add_argument(
        "--json", action="store_true", help=f"print JSON instead of {instead_of}"
    )


def read_file(file: str, *, option: str = "FILE", holds: str = _HOLDS) -> str:
    """Return the text of a file, or of the standard input.

    Args:
        file: Its name; "-" for the standard input.
        option: How the file was given, for errors. Default "FILE".
        holds: What should be in it, for errors. Default "the value of TF_CONFIG".

    Returns:
        The text, also if parts of it are none in UTF-8: these are then no JSON.

    Raises:
        OSError: If it cannot be read.
    """
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
    """Print a text, whatever characters somebody has put into TF_CONFIG.

    Args:
        text: One or more lines.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, errors="backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads on, as after `| head`. Python would complain at exit, too, about
        # what it could not write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def describe(cluster: Cluster) -> str:
    """Say who is in a cluster, and which of them this process is.

    Args:
        cluster: The cluster.

    Returns:
        A part of a sentence.

    Example:
        >>> describe(Cluster(workers=("a:2222", "b:2222"), task=Task("worker", 1)))
        '2 workers; this is worker 1, rank 1 of 2'
    """
    if not cluster.jobs:
        return "no addresses; this process trains alone"
    jobs = [
        f"{len(addresses)} {_NAMES[job][len(addresses) > 1]}"
        for job, addresses in cluster.jobs.items()
    ]
    return f"{', '.join(jobs)}; this is {describe_task(cluster)}"


def describe_task(cluster: Cluster) -> str:
    """Say which task a process has, and its rank.

    Args:
        cluster: The cluster, as the process sees it.
    """
    if not cluster.task.trains:
        return f"{cluster.task}, which has no rank"
    return f"{cluster.task}, rank {cluster.rank} of {cluster.size}"


def tasks_of(cluster: Cluster) -> list[Task]:
    """Return the tasks of all processes that have an address.

    Args:
        cluster: The cluster.

    Example:
        >>> [str(task) for task in tasks_of(Cluster(chief="c:1", workers=("a:1",)))]
        ['chief 0', 'worker 0']
    """
    return [
        Task(job, index)
        for job, addresses in cluster.jobs.items()
        for index in range(len(addresses))
    ]
