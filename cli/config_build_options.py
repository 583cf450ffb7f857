"""The options of `tfdist config build`."""

import argparse

from tfdist_cli.config_build_ports import DEFAULT_PORT
from tfdist_cli.host_options import add_host_options
from tfdist_cli.parser import Parser


def add_options_of_addresses(parser: Parser) -> None:
    """Add the options that say who is in the job.

    Args:
        parser: That of the command.
    """
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


def add_options_of_hosts(parser: Parser) -> None:
    """Add the options that say the same by hosts, or by what a launcher has set.

    Args:
        parser: That of the command.
    """
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


def add_options_of_ports(parser: Parser) -> None:
    """Add the options that say which ports the hosts of -H and --hostfile use.

    Args:
        parser: That of the command.
    """
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


def add_options_of_task(parser: Parser) -> None:
    """Add the options that say for whom TF_CONFIG is.

    Args:
        parser: That of the command.
    """
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


def add_options_of_form(parser: Parser) -> None:
    """Add the options that say what is written.

    Args:
        parser: That of the command.
    """
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
    """Read A,B."""
    return text.split(",")


def _port(text: str) -> int:
    """Read a port, whose range is looked at later."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(
            f"it must be a port from 1 to 65535. Received: {text}. Write it as 2222"
        )
    return int(text)


def _port_range(text: str) -> range:
    """Read A-B."""
    first, dash, last = text.partition("-")
    numbers = [
        int(number)
        for number in (first, last)
        if number.isascii() and number.isdigit() and len(number) <= 5
    ]
    if not dash or len(numbers) < 2 or not 1 <= numbers[0] <= numbers[1] <= 65_535:
        raise argparse.ArgumentTypeError(
            "it must be two ports from 1 to 65535, the lower one first. "
            f"Received: {text}. Write it as 2222-2299"
        )
    return range(numbers[0], numbers[1] + 1)
