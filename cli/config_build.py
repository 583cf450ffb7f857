"""`tfdist config build`: TF_CONFIG from the addresses of a job."""

import argparse
import sys
from dataclasses import replace

from tfdist.cluster import Cluster, Task, tf_config
from tfdist.cluster.address import wrong_address
from tfdist.cluster.cluster_warnings import cluster_warnings
from tfdist.cluster.host_slots import number_ports, parse_hosts
from tfdist.cluster.tf_config_formats import format_tf_config
from tfdist.cluster.validation import JOB_TYPES
from tfdist_cli.config_text import say
from tfdist_cli.options import add_command
from tfdist_cli.parser import Parser

_DEFAULT_PORT = 2222
_ALL = "all"

_DESCRIPTION = """\
Write TF_CONFIG for a process of a job, or for all of them, from the addresses of the
job. What TensorFlow would not understand is an error here.
"""

_EPILOG = """\
examples:
  tfdist config build --workers node1:2222,node2:2222 --index 0
  tfdist config build -H node1:4,node2:4 --index all
  eval "$(tfdist config build -H node1,node2 --index 0 --to shell)"
  tfdist config build --chief c:2222 --workers a:2222,b:2222 --ps p:2222 \\
      --task ps --index 0 --to dotenv > ps.env

exit code:
  0, or 2 if the addresses and the task make no cluster. Warnings go to stderr.
"""


def add_parser(actions: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist config build`.

    Args:
        actions: What `add_subparsers` has returned.
    """
    parser = add_command(
        actions,
        "build",
        "write TF_CONFIG from the addresses of a job",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.set_defaults(func=run)
    _add_options_of_addresses(parser)
    _add_options_of_task(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out `tfdist config build`.

    Args:
        args: What the parser has read.

    Returns:
        The exit code.
    """
    try:
        clusters = clusters_of(args)
        lines = []
        for cluster in clusters:
            if args.index == _ALL:
                lines.append(f"# {cluster.task}")
            lines.append(format_tf_config(tf_config.dumps(cluster), args.to))
    except (TypeError, ValueError) as error:
        args.parser.error(str(error))
    for finding in cluster_warnings(clusters[0].jobs):
        print(f"{args.parser.prog}: warning: {finding.message}", file=sys.stderr)
    say("\n".join(lines))
    return 0


def clusters_of(args: argparse.Namespace) -> list[Cluster]:
    """Return the cluster that the options describe, as each wanted task sees it.

    Args:
        args: What the parser has read.

    Returns:
        One cluster for a task, or one for each.

    Raises:
        ValueError: If the options make no cluster, or do not say which task.
    """
    jobs = {
        "chief": _single(args.chief, "--chief", "Make the others workers."),
        "worker": _workers(args),
        "ps": _checked(args.ps, "--ps"),
        "evaluator": _single(args.evaluator, "--evaluator", "Keep one of them."),
    }
    tasks = _tasks(args, {job: len(addresses) for job, addresses in jobs.items()})
    first = Cluster(
        chief=next(iter(jobs["chief"]), None),
        workers=jobs["worker"],
        ps=jobs["ps"],
        evaluators=jobs["evaluator"],
        task=tasks[0],
    )
    return [replace(first, task=task) for task in tasks]


def _tasks(args: argparse.Namespace, counts: dict[str, int]) -> list[Task]:
    """Return the tasks that are wanted."""
    if not any(counts.values()):
        raise ValueError(
            "There are no addresses to build from. Received: none of --chief, "
            "--workers, -H, --ps and --evaluator. "
            "Give the processes that train, as in --workers node1:2222,node2:2222."
        )
    if args.index is None:
        raise ValueError(
            "--index must say which task it is for, as TF_CONFIG differs in each "
            "process. Received: no --index. Give a number from 0, or all."
        )
    if args.index != _ALL:
        if not (args.index.isascii() and args.index.isdigit() and len(args.index) < 10):
            raise ValueError(
                f"--index must be a number from 0, or all. Received: {args.index}. "
                "Count from 0 within each job."
            )
        return [Task(args.task or "worker", int(args.index))]
    wanted = [Task(args.task, 0).type] if args.task else JOB_TYPES
    tasks = [Task(job, index) for job in wanted for index in range(counts[job])]
    if not tasks:
        raise ValueError(
            f"--task must be a job that has addresses. Received: --task {args.task} "
            "--index all. Add its addresses, or leave --task out for all jobs."
        )
    return tasks


def _workers(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the addresses of the workers, from one of the ways to give them."""
    if args.hosts is None:
        if args.port is not None:
            raise ValueError(
                "--port has no effect without -H, as addresses have ports of their "
                f"own. Received: --port {args.port}. Leave it out, or give -H."
            )
        return _checked(args.workers, "--workers")
    hosts = ",".join(args.hosts)
    if args.workers:
        raise ValueError(
            "-H and --workers both say who the workers are. "
            f"Received: -H {hosts} and --workers {','.join(args.workers)}. "
            "Leave one of them out."
        )
    port = _DEFAULT_PORT if args.port is None else args.port
    return number_ports(parse_hosts(hosts), port)


def _single(addresses: list[str], option: str, advice: str) -> tuple[str, ...]:
    """Return the address of a job that has one at most."""
    if len(addresses) > 1:
        raise ValueError(
            f"{option} must be a single address. "
            f"Received: {','.join(addresses)}. {advice}"
        )
    return _checked(addresses, option)


def _checked(addresses: list[str], option: str) -> tuple[str, ...]:
    """Return addresses of an option; errors name the option and the position."""
    for number, address in enumerate(addresses, start=1):
        finding = wrong_address(address, place=f"address {number} of {option}")
        if finding is not None:
            raise ValueError(finding.message)
    return tuple(addresses)


def _addresses(text: str) -> list[str]:
    """Read A,B."""
    return text.split(",")


def _port(text: str) -> int:
    """Read a port, whose range is looked at later."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(
            f"it must be a port from 1 to 65535. Received: {text}. Write it as 2222"
        )
    return int(text)


def _add_options_of_addresses(parser: Parser) -> None:
    """Add the options that say who is in the job."""
    for flags, metavar, what in (
        (["--chief"], "A", "host:port of the chief, if it is not to be worker 0"),
        (["--workers", "--worker"], "A,B", "those of the workers; may be repeated"),
        (["--ps"], "A,B", "those of the parameter servers; may be repeated"),
        (["--evaluator"], "A", "that of the evaluator"),
    ):
        parser.add_argument(
            *flags,
            type=_addresses,
            action="extend",
            default=[],
            metavar=metavar,
            help=what,
        )
    parser.add_argument(
        "-H",
        dest="hosts",
        action="append",
        metavar="HOST:SLOTS,...",
        help="in place of --workers: hosts, with the number of workers on each "
        "(default: one)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        metavar="PORT",
        help="with -H: the port of the first worker of each host; the others of the "
        f"host have the next ones (default: {_DEFAULT_PORT})",
    )


def _add_options_of_task(parser: Parser) -> None:
    """Add the options that say for whom the lines are, and in which form."""
    parser.add_argument(
        "--task",
        metavar="TYPE",
        help="the job of the process: chief, worker, ps or evaluator (default: worker; "
        "with --index all every job)",
    )
    parser.add_argument(
        "--index",
        metavar="I",
        help="its number within the job, from 0 (required); all for one line for each "
        "task, after a comment that says which",
    )
    parser.add_argument(
        "--to",
        default="json",
        metavar="FORM",
        help="json: the value (default); env: an assignment to put in front of a "
        "command; shell: an export to evaluate; dotenv: a line for docker's --env-file",
    )
