"""`tfdist config`: check, show and build the description of a cluster."""

import argparse
import dataclasses
import json
from typing import Any

from tfdist.cluster import Cluster, Task, tf_config
from tfdist.cluster.address import look_up, split_address
from tfdist.cluster.detect import Explanation, explain, tf_config_here
from tfdist.cluster.validation import ERROR
from tfdist.cluster.variables import meaning
from tfdist_cli import config_build
from tfdist_cli.options import Commands, Parser, add_command, add_options, read_file
from tfdist_cli.table import format_table, say

_DESCRIPTION = """\
Check, show and build TF_CONFIG, the variable that tells each process of a job who the
others are and which of them it is.
"""

_CHECK_DESCRIPTION = """\
Say everything that is wrong with a TF_CONFIG, where, what would come of it, and what to
do. TensorFlow itself accepts most of these mistakes, and then trains alone or waits for
ever.
"""

_CHECK_EPILOG = """\
examples:
  tfdist config check                     the variable TF_CONFIG
  tfdist config check tf_config.json      a file with its value
  kubectl exec pod -- printenv TF_CONFIG | tfdist config check -

exit code:
  0 if it is right, also with warnings; 1 if it has an error; 2 if there was nothing to
  check.
"""

_SHOW_DESCRIPTION = """\
Show the cluster that a process started here would see, as tfdist.cluster.detect() reads
it from the environment: every task with its rank, host, port and role, and which of
them this one is.
"""

_SHOW_EPILOG = """\
examples:
  tfdist config show                      what the environment describes
  tfdist config show --explain            and which variables say so
  tfdist config show tf_config.json       the value of a TF_CONFIG

exit code:
  0 if there is a cluster or nothing that describes one, 2 if it is described wrongly;
  tfdist config check then says everything that is wrong.
"""

_COORDINATES = "coordinates, is the chief"  # Beside parameter servers.
_ROLES = {
    "chief": "trains, is the chief",
    "worker": "trains",
    "ps": "keeps variables",
    "evaluator": "evaluates",
}
_CHECK_OPTIONS = {
    "--resolve": "look up each host name, too, as this machine sees it",
    "--json": "print JSON instead of sentences",
}
_SHOW_OPTIONS = {
    "--explain": "name the resolver that has read it, and its variables",
    "--json": "print JSON instead of the table",
}


def add_parser(commands: Commands) -> None:
    """Add the parser of `tfdist config`."""
    more = "What each says, and why: docs/config.md"
    texts = "check, show and build TF_CONFIG", _DESCRIPTION, more
    parser = add_command(commands, "config", None, *texts)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    summary = "say everything that is wrong with a TF_CONFIG"
    texts = summary, _CHECK_DESCRIPTION, _CHECK_EPILOG
    checking = add_command(actions, "check", check, *texts)
    _add_file(checking, default="the variable of the environment")
    add_options(checking, _CHECK_OPTIONS)
    summary = "show the cluster that this process would see"
    texts = summary, _SHOW_DESCRIPTION, _SHOW_EPILOG
    showing = add_command(actions, "show", show, *texts)
    _add_file(showing, default="the environment")
    add_options(showing, _SHOW_OPTIONS)
    config_build.add_parser(actions)


def _add_file(parser: Parser, *, default: str) -> None:
    """Add the argument FILE, from which a TF_CONFIG is read."""
    text = "a file with the value of TF_CONFIG, or - for the standard input (default: "
    parser.add_argument("file", nargs="?", metavar="FILE", help=f"{text}{default})")


def check(args: argparse.Namespace) -> int:
    """Run `tfdist config check` and return the exit code."""
    text = _text(args.file)
    found = tf_config.findings(text, look_up=look_up if args.resolve else None)
    errors = sum(finding.severity == ERROR for finding in found)
    if args.json:
        findings = [{**dataclasses.asdict(one), "why": one.why} for one in found]
        counts = {"errors": errors, "warnings": len(found) - errors}
        say(json.dumps({**counts, "findings": findings}, indent=2))
        return 1 if errors else 0
    for finding in found:
        shown = dataclasses.replace(finding, fix="").message.rstrip()
        say(f"{finding.severity}: TF_CONFIG {shown}")
        say(f"  Why: {finding.why}\n  Fix: {finding.fix}")
    warned = _count(len(found) - errors, "warning")
    if errors:
        and_warned = f" and {warned}" if errors < len(found) else ""
        say(f"TF_CONFIG has {_count(errors, 'error')}{and_warned}.")
        return 1
    state = f"has no error and {warned}" if found else "is right"
    say(f"TF_CONFIG {state}: {_describe(tf_config.loads(text))}.")
    return 0


def _text(file: str | None) -> str:
    """Return the text to check."""
    text = tf_config_here() if file is None else read_file(file)
    if text is None:
        raise ValueError(
            "There is no TF_CONFIG to check. Received: no FILE, and an environment "
            "without the variable. Give a file with its value, or - for the standard "
            "input."
        )
    return text


def _count(number: int, noun: str) -> str:
    """Format a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _describe(cluster: Cluster) -> str:
    """Describe a cluster, and the task of this process."""
    if not cluster.jobs:
        return "no addresses; this process trains alone"
    jobs = [
        _count(len(addresses), "parameter server" if job == "ps" else job)
        for job, addresses in cluster.jobs.items()
    ]
    return f"{', '.join(jobs)}; this is {_describe_task(cluster)}"


def _describe_task(cluster: Cluster) -> str:
    """Describe the task and the rank of this process."""
    if not cluster.task.trains:
        return f"{cluster.task}, which has no rank"
    if cluster.ps:  # Workers have ranks from 1, so "of" the size would mislead.
        size = _size_of(cluster)
        return f"{cluster.task}, rank {cluster.rank} (tfdist.size() is {size})"
    return f"{cluster.task}, rank {cluster.rank} of {cluster.size}"


def _size_of(cluster: Cluster) -> int:
    """Return the number of processes that train, as `tfdist.size()` does."""
    return len(cluster.workers) if cluster.ps else cluster.size


def show(args: argparse.Namespace) -> int:
    """Run `tfdist config show` and return the exit code."""
    if args.file is None:
        explanation = explain()
    else:
        cluster = tf_config.loads(read_file(args.file))
        explanation = Explanation(cluster, "tf_config", args.file)
    if args.json:
        say(json.dumps(facts_of(explanation, explained=args.explain), indent=2))
        return 0
    say(text_of(explanation))
    if args.explain:
        say(source_of(explanation))
    return 0


def text_of(explanation: Explanation) -> str:
    """Format a cluster as a table, with the task of this process."""
    cluster, place = explanation.cluster, explanation.place
    if not cluster.jobs and place.launcher:
        return (
            f"This is rank {place.rank} of {place.size}, as {place.launcher} says, "
            "which gives no addresses."
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
    return f"{format_table(header, rows)}\n\nThis is {_describe_task(cluster)}."


def source_of(explanation: Explanation) -> str:
    """Format the source of a cluster: its variables and their meaning."""
    if not explanation.launcher:
        return "No variable describes a cluster."
    if explanation.resolver:
        said = f"Read by the resolver {explanation.resolver} ({explanation.launcher})"
    else:
        said = f"No variable gives addresses; {explanation.launcher} has set the rank"
    width = max(map(len, explanation.variables), default=0)
    lines = [
        f"  {variable.ljust(width)}  {meaning(variable)}"
        for variable in explanation.variables
    ]
    text = "\n".join([f"{said}{':' if lines else '.'}", *lines])
    if explanation.others:
        text += f"\nNot asked, as they come later: {', '.join(explanation.others)}."
    return text


def facts_of(explanation: Explanation, *, explained: bool) -> dict[str, Any]:
    """Return the facts about a cluster, for JSON."""
    cluster, place = explanation.cluster, explanation.place
    trains = cluster.task.trains
    facts: dict[str, Any] = {
        "task": str(cluster.task),
        "rank": (cluster.rank if cluster.jobs else place.rank) if trains else None,
        "size": _size_of(cluster) if cluster.jobs else place.size,
        "tasks": _facts_of_tasks(cluster),
    }
    if explained:
        facts |= {
            "resolver": explanation.resolver,
            "launcher": explanation.launcher,
            "variables": explanation.variables,
            "tells": {name: meaning(name) for name in explanation.variables},
            "not_asked": explanation.others,
        }
    return facts


def _facts_of_tasks(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the facts of each task that has an address."""
    facts = []
    for job, addresses in cluster.jobs.items():
        for index, address in enumerate(addresses):
            task = Task(job, index)
            host, port = split_address(address)
            # Without a chief, worker 0 is rank 0 and the chief.
            rank = index + (job == "worker" and cluster.chief is not None)
            role = _ROLES["chief" if task.trains and rank == 0 else job]
            if job == "chief" and cluster.ps:
                role = _COORDINATES
            facts.append(
                {
                    "task": str(task),
                    "rank": rank if task.trains else None,
                    "host": host,
                    "port": port,
                    "role": role,
                    "is_this": task == cluster.task,
                }
            )
    return facts
