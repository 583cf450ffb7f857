"""`tfdist config probe`: which tasks of a cluster reach which others."""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from typing import Any

from tfdist.cluster import Cluster, tf_config
from tfdist.cluster.explanation import explain
from tfdist.cluster.probe import TIMEOUT_SECONDS, ReachMatrix, addresses_by_task, probe
from tfdist.cluster.reach import ADVICE, REACHABLE
from tfdist_cli.config_text import add_file_argument, add_json_argument, read_file, say
from tfdist_cli.options import add_command
from tfdist_cli.parser import Parser
from tfdist_cli.table import format_table

_DESCRIPTION = """\
Find out who reaches whom, before a job starts. Run it on every host as the job would
be, once for each task: it listens at the task's own address, calls all the others, and
rank 0 prints who has reached whom. It needs no port but those of the cluster.
"""

_EPILOG = """\
examples:
  srun tfdist config probe                 on all tasks of a Slurm step
  tfdist config probe                      by hand on each host, with its TF_CONFIG
  tfdist config probe tf_config.json --timeout 60

what the table says:
  reachable       it answers, and is the task that should be there
  refused         nobody listens at that port
  timed out       nothing comes back: a firewall, or a host that is off
  name not found  nobody knows the host's name
  no route        no network leads there, or something rejects what goes there
  hung up         something takes the connection, and closes it without a word
  stranger        something else answers there
  other task, other cluster
                  a probe answers that has another task, or other addresses

exit code:
  0 if all reach all, 1 if not, 2 if there is no cluster or a wrong one.
"""

_NO_ROW = "?"


def add_parser(actions: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist config probe`.

    Args:
        actions: What `add_subparsers` has returned.
    """
    parser = add_command(
        actions,
        "probe",
        "find out which tasks reach which others, on the hosts",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.set_defaults(func=run)
    add_file_argument(
        parser,
        default="the environment",
        holds="the value of this task's TF_CONFIG",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT_SECONDS,
        metavar="SECONDS",
        help=f"how long to try (default: {TIMEOUT_SECONDS:g})",
    )
    add_json_argument(parser, instead_of="the table")


def run(args: argparse.Namespace) -> int:
    """Carry out `tfdist config probe`.

    Args:
        args: What the parser has read.

    Returns:
        The exit code.
    """
    cluster = _cluster(args)
    if not 0 < args.timeout < math.inf:
        args.parser.error(
            "--timeout must be a positive number of seconds. "
            f"Received: {args.timeout:g}. Leave it out for {TIMEOUT_SECONDS:g}."
        )
    if cluster.task.index >= len(cluster.jobs.get(cluster.task.type, ())):
        _remark(
            f"{cluster.task} has no address in the cluster: nobody calls it, and it "
            "calls nobody. There is nothing to probe here."
        )
        return 0
    try:
        with probe(cluster, timeout_seconds=args.timeout) as matrix:
            _tell(matrix, as_json=args.json)
            return 0 if matrix.all_reach else 1
    except OSError as error:
        _remark(f"{args.parser.prog}: error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


def _cluster(args: argparse.Namespace) -> Cluster:
    """Return the cluster to probe."""
    parser: Parser = args.parser
    try:
        if args.file is None:
            explanation = explain()
            cluster, launcher = explanation.cluster, explanation.place.launcher
        else:
            cluster, launcher = tf_config.loads(read_file(args.file)), ""
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if not cluster.jobs:
        received = (
            f"the environment of {launcher}, which tells no addresses"
            if launcher
            else "what describes no cluster"
        )
        parser.error(
            f"There is no cluster to probe. Received: {received}. Set TF_CONFIG, or "
            "give a file with its value; tfdist config build writes one."
        )
    return cluster


def _tell(matrix: ReachMatrix, *, as_json: bool) -> None:
    """Print what this process is to print."""
    is_collector = matrix.cluster.task == matrix.collector
    where = f"{matrix.collector} ({matrix.cluster.addresses[0]})"
    if not is_collector and matrix.ended is not None:
        # One table is enough; on stderr, so that it can be read by a program.
        _remark(f"{matrix.cluster.task} has given its row to {where}.")
        return
    if not is_collector:
        _remark(
            f"{matrix.cluster.task} could not give its row to {where}, which prints "
            "the whole table. This is what it has seen itself."
        )
    say(json.dumps(_facts(matrix), indent=2) if as_json else _text(matrix))


def _text(matrix: ReachMatrix) -> str:
    """Return the table, and what stands in the way."""
    tasks = [*addresses_by_task(matrix.cluster)]
    shown = tasks if matrix.cluster.task == matrix.collector else [*matrix.rows]
    rows = [[task, *(_cell(matrix, task, other) for other in tasks)] for task in shown]
    lines = [format_table(["from \\ to", *tasks], rows), "", *_obstacles(matrix)]
    return "\n".join([*lines, _sum(matrix, len(tasks))])


def _cell(matrix: ReachMatrix, task: str, other: str) -> str:
    """Return what one task has seen of another, in a word."""
    if task == other:
        return "-"
    row = matrix.rows.get(task)
    return _NO_ROW if row is None or other not in row else row[other].outcome


def _obstacles(matrix: ReachMatrix) -> Iterator[str]:
    """Yield a line for each thing that stands in the way of one task or several."""
    seen: dict[tuple[str, str, str], list[str]] = {}
    for task, row in matrix.rows.items():
        for other, reach in row.items():
            if reach.outcome != REACHABLE:
                key = (other, reach.outcome, reach.detail)
                seen.setdefault(key, []).append(task)
    addresses = addresses_by_task(matrix.cluster)
    for (other, outcome, detail), callers in sorted(seen.items()):
        because = f" ({detail})" if detail else ""
        advice = ADVICE.get(outcome, "")
        yield (
            f"{other} ({addresses.get(other)}), from {', '.join(callers)}: {outcome}"
            f"{because}. {advice}"
        )
    if matrix.cluster.task == matrix.collector:
        for task, address in addresses.items():
            if task not in matrix.rows:
                yield (
                    f"{task} ({address}) has not given its row: see whether it was "
                    "started, and what it prints itself."
                )
    for task in sorted(matrix.doubles):
        yield (
            f"Several processes call themselves {task}: give each its own task index."
        )


def _sum(matrix: ReachMatrix, tasks: int) -> str:
    """Return the last line."""
    if tasks == 1:
        return "There is no other task."
    if matrix.all_reach:
        return f"All {tasks} tasks reach each other."
    outcomes = [reach.outcome for row in matrix.rows.values() for reach in row.values()]
    ways = len(matrix.rows) * (tasks - 1)
    if matrix.cluster.task == matrix.collector:
        ways = tasks * (tasks - 1)
    return f"{outcomes.count(REACHABLE)} of {ways} ways are open."


def _facts(matrix: ReachMatrix) -> dict[str, Any]:
    """Return what is shown, for programs."""
    return {
        "all_reach": matrix.all_reach,
        "task": str(matrix.cluster.task),
        "tasks": addresses_by_task(matrix.cluster),
        "rows": {
            task: {
                other: {"outcome": reach.outcome, "detail": reach.detail}
                for other, reach in row.items()
            }
            for task, row in matrix.rows.items()
        },
        "several_processes": sorted(matrix.doubles),
    }


def _remark(text: str) -> None:
    """Print what is no part of the table."""
    print(text, file=sys.stderr, flush=True)
