"""`tfdist config build`: convert the description of a job to another form."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from tfdist.cluster import Cluster, tf_config
from tfdist.cluster.address import parse_digits
from tfdist.cluster.detect import SOURCES
from tfdist.cluster.tf_config import FORMATS, format_tf_config
from tfdist.cluster.validation import cluster_warnings
from tfdist_cli.config_build_job import (
    ALL,
    DEFAULT_PORT,
    cluster_of_job,
    clusters_of,
    counts_of,
)
from tfdist_cli.options import (
    Commands,
    add_command,
    add_host_options,
    add_options,
    given_options,
)
from tfdist_cli.table import say

_SUMMARY = "write TF_CONFIG, or what starts a job, from a description of the job"
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
  tfdist config build --nodes 2 --ntasks-per-node 4 --cpus 8 --gpus 1 --to sbatch
  tfdist config build -H a,b --to kubernetes --image registry/train:1 > job.yaml

exit code:
  0, or 2 if what was given makes no cluster, or none that the form can hold. Warnings
  go to stderr.
"""

# Options that describe the program of a whole job.
_PROGRAM = ("name", "command", "image", "cpus", "gpus")
_PORTS = ("--port", "--pick-ports")

_WORKERS = {
    "--workers --worker A,B ...": "host:port of each worker; may be repeated",
}
_OPTIONS = {
    "--chief A": "host:port of the chief, if it is not to be worker 0",
    "--ps A,B ...": "host:port of each parameter server; may be repeated",
    "--evaluator A": "host:port of the evaluator",
    "--from LAUNCHER": f"read the job from the variables of {', '.join(SOURCES[:-1])}; "
    "auto for the first one that is there. Launchers that give no addresses need -H or "
    "--hostfile, too",
    "--port --port-range A-B": "with -H or --hostfile: the port A of the first worker "
    f"of each host (default: {DEFAULT_PORT}; with sbatch, one that follows from the "
    "number of the job); the others of the host have the next ones, up to B if that is "
    "given",
    "--nodes N": "with sbatch, pbs or lsf: how many nodes, any that are free, in place "
    "of the names of hosts",
    "--ntasks-per-node N": "with --nodes: how many processes on each (default: 1)",
    "--pick-ports": "on hosts that are this machine, take ports that are free, out of "
    "--port-range if that is given; another program may still take one before the job "
    "starts. On other hosts ports are counted up",
    "--task TYPE": "the job of the process: chief, worker, ps or evaluator (default: "
    "worker; with --index all every job)",
    "--index I": "its number within the job, from 0 (required, unless --from gives "
    "it); all for one line for each task, after a comment with its name",
    "--to json|env|shell|dotenv|hostfile|sbatch|pbs|lsf|kubernetes|jobset|trainjob|"
    "tfjob|mpijob|compose": "of TF_CONFIG, json: the value; env: an assignment to put "
    "in front of a command; shell: an export to evaluate; dotenv: a line for docker's "
    "--env-file. Of the whole job, hostfile; sbatch, pbs and lsf: a script for Slurm, "
    "PBS or LSF; kubernetes: an indexed Job with its Service; jobset: a JobSet; "
    "trainjob, tfjob and mpijob: for Kubeflow; compose: a file for docker compose",
    "--name NAME": "the name of the whole job (default: train)",
    "--image IMAGE": "the image of its containers, which forms for them need",
    "--command LINE": "the command of its processes (default: python train.py); only "
    "sbatch, pbs and lsf have a shell that expands $NAME in it",
    "--cpus N": "the cores of each process of the whole job (default: 1 with sbatch, "
    "pbs and lsf; no limit in containers)",
    "--gpus N": "the GPUs of each process that computes, so not of parameter servers "
    "and their chief",
}


def add_parser(actions: Commands) -> None:
    """Add the parser of `tfdist config build`."""
    parser = add_command(actions, "build", run, _SUMMARY, _DESCRIPTION, _EPILOG)
    text = "in place of --workers: hosts, with the number of workers on each (default: "
    types: dict[str, Callable[[str], Any]] = {
        "A": lambda address: [address],
        "A,B": lambda addresses: addresses.split(","),
        "A-B": _ports,
        "I": _index,
    }
    add_options(add_host_options(parser, f"{text}one)"), _WORKERS, types)
    add_options(parser, _OPTIONS, types, to="json")


def run(args: argparse.Namespace) -> int:
    """Run `tfdist config build` and return the exit code."""
    clusters, text = (_tf_config if args.to in FORMATS else _job_file)(args)
    for finding in cluster_warnings(clusters[0].jobs) if clusters else ():
        print(f"{args.parser.prog}: warning: {finding.message}", file=sys.stderr)
    say(text)
    return 0


def _tf_config(args: argparse.Namespace) -> tuple[list[Cluster], str]:
    """Return the cluster as each selected task sees it, and a line for each."""
    _check_unused(args, *_PROGRAM, "nodes", "ntasks_per_node")
    clusters = clusters_of(args)
    lines = []
    for cluster in clusters:
        if args.index == ALL:
            lines.append(f"# {cluster.task}")
        lines.append(format_tf_config(tf_config.dumps(cluster), args.to))
    return clusters, "\n".join(lines)


def _job_file(args: argparse.Namespace) -> tuple[list[Cluster], str]:
    """Return the cluster, unless only its size is given, and the file of the job."""
    # Imported late: the most frequent use, TF_CONFIG, does not need it.
    from tfdist.cluster.job_files import JOB_FILES, Nodes, Program, format_job_file

    used = JOB_FILES[args.to]
    _check_unused(args, *sorted({"task", "index"}.union(*JOB_FILES.values()) - {*used}))
    given = {option: getattr(args, option) for option in _PROGRAM if option in used}
    if "port" in used and args.port is not None:
        given["port"] = args.port.start
    program = Program(
        **{option: value for option, value in given.items() if value is not None}
    )
    counts = counts_of(args)
    job = cluster_of_job(args) if counts is None else Nodes(*counts)
    text = format_job_file(job, args.to, program).removesuffix("\n")
    return [job] if isinstance(job, Cluster) else [], text


def _check_unused(args: argparse.Namespace, *options: str) -> None:
    """Raise for options that the output form does not use."""
    for option, value in given_options(args, *options).items():
        shown = option if option in _PORTS else f"{option} {value}"
        raise ValueError(
            f"{option} has no effect with --to {args.to}. "
            f"Received: {shown}. Leave it out, or choose another --to."
        )


def _ports(text: str) -> range:
    """Parse A or A-B."""
    first, dash, last = text.partition("-")
    low = parse_digits(first) or 0
    high = (parse_digits(last) or 0) if dash else 65_535
    if not 1 <= low <= high <= 65_535:
        raise argparse.ArgumentTypeError(
            "it must be a port from 1 to 65535, or two, the lower one first. "
            f"Received: {text}. Write it as 2222 or 2222-2299"
        )
    return range(low, high + 1)


def _index(text: str) -> int | str:
    """Parse the number of a task, or all."""
    index = ALL if text == ALL else parse_digits(text)
    if index is None:
        raise argparse.ArgumentTypeError(
            f"it must be a number from 0, or all. Received: {text}. "
            "Count from 0 within each job"
        )
    return index
