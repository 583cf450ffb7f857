"""`tfdist config build`: a job described in one form, written in another."""

import argparse
import sys

from tfdist.cluster import Cluster, tf_config
from tfdist.cluster.cluster_warnings import cluster_warnings
from tfdist.cluster.tf_config_formats import FORMATS, format_tf_config
from tfdist_cli.config_build_cluster import ALL, cluster_of_job, clusters_of
from tfdist_cli.config_build_options import (
    add_options_of_addresses,
    add_options_of_form,
    add_options_of_hosts,
    add_options_of_ports,
    add_options_of_task,
)
from tfdist_cli.config_text import say
from tfdist_cli.options import add_command
from tfdist_cli.parser import Parser

_DESCRIPTION = """\
Write TF_CONFIG for a process of a job, or for all of them, or the file that starts the
whole job on a scheduler. Who is in the job is told by addresses, by hosts, by a
hostfile, or by the variables of another launcher. What TensorFlow would not understand
is an error here.
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
    """Add the parser of `tfdist config build`.

    Args:
        actions: What `add_subparsers` has returned.
    """
    parser = add_command(
        actions,
        "build",
        "write TF_CONFIG, or what starts a job, from a description of the job",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.set_defaults(func=run)
    add_options_of_addresses(parser)
    add_options_of_hosts(parser)
    add_options_of_ports(parser)
    add_options_of_task(parser)
    add_options_of_form(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out `tfdist config build`.

    Args:
        args: What the parser has read.

    Returns:
        The exit code.
    """
    try:
        if args.to in FORMATS:
            clusters, text = _tf_config(args)
        else:
            clusters, text = _artefact(args)
    except (OSError, TypeError, ValueError) as error:
        args.parser.error(str(error))
    for finding in cluster_warnings(clusters[0].jobs):
        print(f"{args.parser.prog}: warning: {finding.message}", file=sys.stderr)
    say(text)
    return 0


def _tf_config(args: argparse.Namespace) -> tuple[list[Cluster], str]:
    """Return the cluster as each wanted task sees it, and a line for each."""
    for option in ("name", "command", "image"):
        _check_unused(args, option)
    clusters = clusters_of(args)
    lines = []
    for cluster in clusters:
        if args.index == ALL:
            lines.append(f"# {cluster.task}")
        lines.append(format_tf_config(tf_config.dumps(cluster), args.to))
    return clusters, "\n".join(lines)


def _artefact(args: argparse.Namespace) -> tuple[list[Cluster], str]:
    """Return the cluster, and what starts it as a whole."""
    # Imported here because TF_CONFIG, which is wanted most, needs none of it.
    from tfdist.cluster.artefacts import ARTEFACTS, Program, format_artefact

    if args.to not in ARTEFACTS:
        raise ValueError(
            f"--to must be one of {', '.join((*FORMATS, *ARTEFACTS))}. "
            f"Received: --to {args.to}. Use shell for a line to source, dotenv for "
            "docker."
        )
    for option in {"name", "command", "image"}.difference(ARTEFACTS[args.to]):
        _check_unused(args, option)
    for option in ("task", "index"):
        _check_unused(args, option)
    given = {option: getattr(args, option) for option in ARTEFACTS[args.to]}
    program = Program(
        **{option: value for option, value in given.items() if value is not None}
    )
    cluster = cluster_of_job(args)
    return [cluster], format_artefact(cluster, args.to, program).removesuffix("\n")


def _check_unused(args: argparse.Namespace, option: str) -> None:
    """Refuse an option that has no part in the form."""
    value = getattr(args, option)
    if value is None:
        return
    why = "is for one task" if option in ("task", "index") else "does not stand there"
    raise ValueError(
        f"--{option} has no effect with --to {args.to}, as it {why}. "
        f"Received: --{option} {value}. Leave it out, or choose another --to."
    )
