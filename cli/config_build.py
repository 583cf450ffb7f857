"""`tfdist config build`: convert the description of a job to another form."""

import argparse
import sys

from tfdist.cluster import Cluster, tf_config
from tfdist.cluster.address import parse_digits
from tfdist.cluster.tf_config import FORMATS, format_tf_config
from tfdist.cluster.validation import cluster_warnings
from tfdist_cli.config_build_job import ALL, DEFAULT_PORT, cluster_of_job, clusters_of
from tfdist_cli.config_text import say
from tfdist_cli.host_options import add_host_options
from tfdist_cli.options import Parser, add_command

_DESCRIPTION = """\
Write TF_CONFIG for a process of a job, or for all of them, or the file that starts the
whole job on a scheduler. The processes of the job are given by addresses, by hosts, by
a hostfile, or by the variables of another launcher. A cluster that TensorFlow would not
understand is an error here.
"""

_EPILOG = """\
examples:
  tfdist config build --workers node1:2222,node2:2222 --index 0
  tfdist config build -H node1:4,node2:4 --index all
  eval "$(tfdist config build -H node1,node2 --index 0 --to shell)"
  tfdist config build --chief c:2222 --workers a:2222,b:2222 --ps p:2222 \\
      --task ps --index 0 --to dotenv > ps.env
  srun tfdist config build --from slurm
  tfdist config build --hostfile hosts --to sbatch --command "python train.py"
  tfdist config build -H a,b --to kubernetes --image registry/train:1 > job.yaml

exit code:
  0, or 2 if what was given makes no cluster, or none that the form can hold. Warnings
  go to stderr.
"""


def add_parser(actions: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist config build`."""
    parser = add_command(
        actions,
        "build",
        "write TF_CONFIG, or what starts a job, from a description of the job",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.set_defaults(func=run)
    _add_options_of_addresses(parser)
    _add_options_of_hosts(parser)
    _add_options_of_ports(parser)
    _add_options_of_task(parser)
    _add_options_of_form(parser)


def run(args: argparse.Namespace) -> int:
    """Run `tfdist config build` and return the exit code."""
    try:
        if args.to in FORMATS:
            clusters, text = _tf_config(args)
        else:
            clusters, text = _job_file(args)
    except (OSError, TypeError, ValueError) as error:
        args.parser.error(str(error))
    for finding in cluster_warnings(clusters[0].jobs):
        print(f"{args.parser.prog}: warning: {finding.message}", file=sys.stderr)
    say(text)
    return 0


def _tf_config(args: argparse.Namespace) -> tuple[list[Cluster], str]:
    """Return the cluster as each selected task sees it, and a line for each."""
    for option in ("name", "command", "image"):
        _check_unused(args, option)
    clusters = clusters_of(args)
    lines = []
    for cluster in clusters:
        if args.index == ALL:
            lines.append(f"# {cluster.task}")
        lines.append(format_tf_config(tf_config.dumps(cluster), args.to))
    return clusters, "\n".join(lines)


def _job_file(args: argparse.Namespace) -> tuple[list[Cluster], str]:
    """Return the cluster, and the file that starts the whole job."""
    # Imported late: the most frequent use, TF_CONFIG, does not need it.
    from tfdist.cluster.templates import JOB_FILES, Program, format_job_file

    if args.to not in JOB_FILES:
        raise ValueError(
            f"--to must be one of {', '.join((*FORMATS, *JOB_FILES))}. "
            f"Received: --to {args.to}. Use shell for a line to source, dotenv for "
            "docker."
        )
    for option in {"name", "command", "image"}.difference(JOB_FILES[args.to]):
        _check_unused(args, option)
    for option in ("task", "index"):
        _check_unused(args, option)
    given = {option: getattr(args, option) for option in JOB_FILES[args.to]}
    program = Program(
        **{option: value for option, value in given.items() if value is not None}
    )
    cluster = cluster_of_job(args)
    return [cluster], format_job_file(cluster, args.to, program).removesuffix("\n")


def _check_unused(args: argparse.Namespace, option: str) -> None:
    """Raise for an option that the output form does not use."""
    value = getattr(args, option)
    if value is None:
        return
    why = "is for one task" if option in ("task", "index") else "is not a part of it"
    raise ValueError(
        f"--{option} has no effect with --to {args.to}, as it {why}. "
        f"Received: --{option} {value}. Leave it out, or choose another --to."
    )


def _add_options_of_addresses(parser: Parser) -> None:
    """Add the options that give addresses."""
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


def _add_options_of_hosts(parser: Parser) -> None:
    """Add the options that give hosts, or a launcher's variables."""
    add_host_options(
        parser,
        "in place of --workers: hosts, with the number of workers on each (default: "
        "one)",
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="LAUNCHER",
        help="read the job from the variables that slurm, openmpi, mpich, horovod, "
        "torchrun, kubernetes, tfjob, sagemaker, vertex or tf_config has set; auto for "
        "the first that has. Those that tell no addresses need -H or --hostfile, too",
    )
    parser.add_argument(
        "--variables",
        metavar="FILE",
        help="with --from: a file with NAME=VALUE lines, as printenv writes it, in "
        "place of the environment; - for the standard input",
    )


def _add_options_of_ports(parser: Parser) -> None:
    """Add the options for the ports of -H and --hostfile."""
    parser.add_argument(
        "--port",
        type=_port,
        metavar="PORT",
        help="with -H or --hostfile: the port of the first worker of each host; the "
        f"others of the host have the next ones (default: {DEFAULT_PORT})",
    )
    parser.add_argument(
        "--port-range",
        type=_port_range,
        metavar="A-B",
        help="in place of --port: count from A, and no further than B",
    )
    parser.add_argument(
        "--pick-ports",
        action="store_true",
        help="on hosts that are this machine, take ports that are free, out of "
        "--port-range if that is given. Each is checked by binding it for a moment, so "
        "another program may still take it before the job starts. The ports of other "
        "hosts cannot be checked from here, and are counted up",
    )


def _add_options_of_task(parser: Parser) -> None:
    """Add the options for the task of TF_CONFIG."""
    parser.add_argument(
        "--task",
        metavar="TYPE",
        help="the job of the process: chief, worker, ps or evaluator (default: worker; "
        "with --index all every job)",
    )
    parser.add_argument(
        "--index",
        metavar="I",
        help="its number within the job, from 0 (required, unless --from tells it); "
        "all for one line for each task, after a comment that says which",
    )


def _add_options_of_form(parser: Parser) -> None:
    """Add the options for the output."""
    parser.add_argument(
        "--to",
        default="json",
        metavar="FORM",
        help="of TF_CONFIG, json: the value (default); env: an assignment to put in "
        "front of a command; shell: an export to evaluate; dotenv: a line for docker's "
        "--env-file. Of the whole job, hostfile; sbatch: a script for Slurm; "
        "kubernetes: an indexed Job with its Service; tfjob and mpijob: for the "
        "operators of Kubeflow; compose: a file for docker compose",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="what the whole job is called (default: train)"
    )
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        help="what its containers are made of; kubernetes, tfjob, mpijob and compose "
        "need it",
    )
    parser.add_argument(
        "--command",
        metavar="LINE",
        help="what it runs (default: python train.py); only sbatch has a shell that "
        "expands $NAME in it",
    )


def _addresses(text: str) -> list[str]:
    """Parse A,B."""
    return text.split(",")


def _port(text: str) -> int:
    """Parse a port; its range is checked later."""
    port = parse_digits(text)
    if port is None:
        raise argparse.ArgumentTypeError(
            f"it must be a port from 1 to 65535. Received: {text}. Write it as 2222"
        )
    return port


def _port_range(text: str) -> range:
    """Parse A-B."""
    first, _, last = text.partition("-")
    low, high = parse_digits(first) or 0, parse_digits(last) or 0
    if not 1 <= low <= high <= 65_535:
        raise argparse.ArgumentTypeError(
            "it must be two ports from 1 to 65535, the lower one first. "
            f"Received: {text}. Write it as 2222-2299"
        )
    return range(low, high + 1)
