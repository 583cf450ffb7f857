"""`tfdist config`: check, show and build the description of a cluster."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from tfdist.cluster import Cluster, Task, tf_config
from tfdist.cluster.address import look_up, split_address
from tfdist.cluster.detect import Explanation, explain, tf_config_here
from tfdist.cluster.validation import ERROR, Finding
from tfdist.cluster.variables import FACTS
from tfdist_cli import config_build
from tfdist_cli.config_text import (
    add_file_argument,
    add_json_argument,
    describe,
    describe_task,
    read_file,
    say,
    tasks_of,
)
from tfdist_cli.options import Parser, add_command
from tfdist_cli.table import format_table

_DESCRIPTION = """\
Check, show and build TF_CONFIG, the variable that tells each process of a job who the
others are and which of them it is.
"""


def add_parser(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist config`."""
    parser = add_command(
        commands,
        "config",
        "check, show and build TF_CONFIG",
        description=_DESCRIPTION,
        epilog="What each says, and why: docs/config.md",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_check(actions)
    _add_show(actions)
    config_build.add_parser(actions)


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


def _add_check(actions: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist config check`."""
    parser = add_command(
        actions,
        "check",
        "say everything that is wrong with a TF_CONFIG",
        description=_CHECK_DESCRIPTION,
        epilog=_CHECK_EPILOG,
    )
    parser.set_defaults(func=check)
    add_file_argument(parser, default="the variable of the environment")
    parser.add_argument(
        "--resolve",
        action="store_true",
        help="look up each host name, too, as this machine sees it",
    )
    add_json_argument(parser, instead_of="sentences")


def check(args: argparse.Namespace) -> int:
    """Run `tfdist config check` and return the exit code."""
    text = _text(args)
    found = tf_config.findings(text, look_up=look_up if args.resolve else None)
    errors = sum(finding.severity == ERROR for finding in found)
    if args.json:
        say(_json_of(found, errors))
        return 1 if errors else 0
    for finding in found:
        say(_lines_of(finding))
    say(_last_line(text, errors, len(found) - errors))
    return 1 if errors else 0


def _text(args: argparse.Namespace) -> str:
    """Return the text to check."""
    parser: Parser = args.parser
    try:
        text = tf_config_here() if args.file is None else read_file(args.file)
    except OSError as error:
        parser.error(str(error))
    if text is None:
        parser.error(
            "There is no TF_CONFIG to check. Received: no FILE, and an environment "
            "without the variable. Give a file with its value, or - for the standard "
            "input."
        )
    return text


def _lines_of(finding: Finding) -> str:
    """Format a finding."""
    shown = dataclasses.replace(finding, fix="").message.rstrip()
    return (
        f"{finding.severity}: TF_CONFIG {shown}\n"
        f"  Why: {finding.why}\n"
        f"  Fix: {finding.fix}"
    )


def _last_line(text: str, errors: int, warnings: int) -> str:
    """Format the summary."""
    warned = _count(warnings, "warning")
    if errors:
        and_warned = f" and {warned}" if warnings else ""
        return f"TF_CONFIG has {_count(errors, 'error')}{and_warned}."
    what = describe(tf_config.loads(text))
    if warnings:
        return f"TF_CONFIG has no error and {warned}: {what}."
    return f"TF_CONFIG is right: {what}."


def _count(number: int, noun: str) -> str:
    """Format a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _json_of(found: Sequence[Finding], errors: int) -> str:
    """Format the findings as JSON."""
    return json.dumps(
        {
            "errors": errors,
            "warnings": len(found) - errors,
            "findings": [
                {**dataclasses.asdict(finding), "why": finding.why} for finding in found
            ],
        },
        indent=2,
    )


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

_ROLES = {
    "chief": "trains, is the chief",
    "worker": "trains",
    "ps": "keeps variables",
    "evaluator": "evaluates",
}


def _add_show(actions: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist config show`."""
    parser = add_command(
        actions,
        "show",
        "show the cluster that this process would see",
        description=_SHOW_DESCRIPTION,
        epilog=_SHOW_EPILOG,
    )
    parser.set_defaults(func=show)
    add_file_argument(parser, default="the environment")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="say which resolver has read it, and from which variables",
    )
    add_json_argument(parser, instead_of="the table")


def show(args: argparse.Namespace) -> int:
    """Run `tfdist config show` and return the exit code."""
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
        for fact in (_facts_of(task, cluster) for task in tasks_of(cluster))
    ]
    return f"{format_table(header, rows)}\n\nThis is {describe_task(cluster)}."


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
        f"  {variable.ljust(width)}  {FACTS[variable]}"
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
        "size": cluster.size if cluster.jobs else place.size,
        "tasks": [_facts_of(task, cluster) for task in tasks_of(cluster)],
    }
    if explained:
        facts |= {
            "resolver": explanation.resolver,
            "launcher": explanation.launcher,
            "variables": explanation.variables,
            "tells": {name: FACTS[name] for name in explanation.variables},
            "not_asked": explanation.others,
        }
    return facts


def _facts_of(task: Task, cluster: Cluster) -> dict[str, Any]:
    """Return the facts of one task."""
    host, port = split_address(cluster.jobs[task.type][task.index])
    # Without a chief, worker 0 is rank 0 and the chief.
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
