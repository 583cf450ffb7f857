"""`tfdist config show`: the cluster that this process would see."""

import argparse
import json
from typing import Any

from tfdist.cluster import Cluster, Task, tf_config
from tfdist.cluster.address import split_address
from tfdist.cluster.explanation import Explanation, explain
from tfdist.cluster.variable_facts import fact_of
from tfdist_cli.config_text import (
    add_file_argument,
    add_json_argument,
    describe_task,
    read_file,
    say,
    tasks_of,
)
from tfdist_cli.options import add_command
from tfdist_cli.parser import Parser
from tfdist_cli.table import format_table

_DESCRIPTION = """\
Show the cluster that a process started here would see, as tfdist.cluster.detect() reads
it from the environment: every task with its rank, host, port and role, and which of
them this one is.
"""

_EPILOG = """\
examples:
  tfdist config show                      what the environment describes
  tfdist config show --explain            and which variables say so
  tfdist config show tf_config.json       the value of a TF_CONFIG

exit code:
  0 if there is a cluster or nothing that describes one, 2 if it is described wrongly;
  tfdist config check then says everything that is wrong.
"""

_ROLES = {
    "chief": "trains, is the chief",
    "worker": "trains",
    "ps": "keeps variables",
    "evaluator": "evaluates",
}


def add_parser(actions: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist config show`.

    Args:
        actions: What `add_subparsers` has returned.
    """
    parser = add_command(
        actions,
        "show",
        "show the cluster that this process would see",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.set_defaults(func=run)
    add_file_argument(parser, default="the environment")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="say which resolver has read it, and from which variables",
    )
    add_json_argument(parser, instead_of="the table")


def run(args: argparse.Namespace) -> int:
    """Carry out `tfdist config show`.

    Args:
        args: What the parser has read.

    Returns:
        The exit code.
    """
    try:
        if args.file is None:
            explanation = explain()
        else:
            cluster = tf_config.loads(read_file(args.file))
            explanation = Explanation(cluster, "tf_config", args.file)
    except (OSError, ValueError) as error:
        args.parser.error(str(error))
    if args.json:
        say(json.dumps(facts_of(explanation, explained=args.explain), indent=2))
        return 0
    say(text_of(explanation))
    if args.explain:
        say(source_of(explanation))
    return 0


def text_of(explanation: Explanation) -> str:
    """Return the table of a cluster, and which of its processes this is.

    Args:
        explanation: The cluster, with its source.

    Returns:
        Several lines.
    """
    cluster, place = explanation.cluster, explanation.place
    if not cluster.jobs and place.launcher:
        return (
            f"This is rank {place.rank} of {place.size}, as {place.launcher} says, "
            "which tells no addresses."
        )
    if not cluster.jobs:
        return "This process is alone: rank 0 of 1."
    header = ["task", "rank", "host", "port", "role", "this process"]
    rows = [
        [
            fact["task"],
            "-" if fact["rank"] is None else str(fact["rank"]),
            fact["host"],
            str(fact["port"]),
            fact["role"],
            "here" if fact["is_this"] else "",
        ]
        for fact in _facts_of_tasks(cluster)
    ]
    return f"{format_table(header, rows)}\n\nThis is {describe_task(cluster)}."


def source_of(explanation: Explanation) -> str:
    """Say where a cluster was read.

    Args:
        explanation: The cluster, with its source.

    Returns:
        A line, one for each variable with what it tells, and one for what was not read.
    """
    if not explanation.launcher:
        return "No variable describes a cluster."
    if explanation.resolver:
        said = f"Read by the resolver {explanation.resolver} ({explanation.launcher})"
    else:
        said = f"No variable tells addresses; {explanation.launcher} has set the rank"
    width = max(map(len, explanation.variables), default=0)
    lines = [
        f"  {variable.ljust(width)}  {fact_of(variable)}".rstrip()
        for variable in explanation.variables
    ]
    text = "\n".join([f"{said}{':' if lines else '.'}", *lines])
    if explanation.others:
        text += f"\nNot asked, as they come later: {', '.join(explanation.others)}."
    return text


def facts_of(explanation: Explanation, *, explained: bool) -> dict[str, Any]:
    """Return what is shown of a cluster, for programs.

    Args:
        explanation: The cluster, with its source.
        explained: Whether to say where it was read.

    Returns:
        What JSON can hold.
    """
    cluster, place = explanation.cluster, explanation.place
    trains = cluster.task.trains
    facts: dict[str, Any] = {
        "task": str(cluster.task),
        "rank": (cluster.rank if cluster.jobs else place.rank) if trains else None,
        "size": cluster.size if cluster.jobs else place.size,
        "tasks": _facts_of_tasks(cluster),
    }
    if explained:
        facts |= {
            "resolver": explanation.resolver,
            "launcher": explanation.launcher,
            "variables": explanation.variables,
            "tells": {name: fact_of(name) for name in explanation.variables},
            "not_asked": explanation.others,
        }
    return facts


def _facts_of_tasks(cluster: Cluster) -> list[dict[str, Any]]:
    """Return what is known about each task."""
    return [_facts_of(task, cluster) for task in tasks_of(cluster)]


def _facts_of(task: Task, cluster: Cluster) -> dict[str, Any]:
    """Return what is known about one task."""
    host, port = split_address(cluster.jobs[task.type][task.index])
    # Without a chief worker 0 is rank 0, and takes its part.
    rank = task.index + (task.type == "worker" and cluster.chief is not None)
    is_chief = task.trains and rank == 0
    return {
        "task": str(task),
        "rank": rank if task.trains else None,
        "host": host,
        "port": port,
        "role": _ROLES["chief" if is_chief else task.type],
        "is_this": task == cluster.task,
    }
