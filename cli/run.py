"""`tfdist run`: running a program as several processes."""

import argparse
from functools import partial
from pathlib import Path

from tfdist.cluster.launcher import START_TIMEOUT_VARIABLE
from tfdist.launching.horovod import TUNING_OPTIONS, tuning_variables
from tfdist.launching.hosts import Hosts
from tfdist.launching.isolation import isolate_network
from tfdist.launching.job import (
    DEFAULT_RESTARTS,
    LEVEL_VARIABLE,
    STRATEGIES,
    Job,
    Limits,
    resolve_command,
    with_strategy,
)
from tfdist.launching.restarts import Restarts
from tfdist.launching.runner import check_job, run_job
from tfdist_cli.options import (
    Commands,
    add_command,
    add_options,
    add_program,
    check_outputs,
    given_options,
    without_dashes,
)
from tfdist_cli.run_hosts import add_options_of_hosts, dry_lines, hosts_of
from tfdist_cli.run_report import (
    METRICS_OPTIONS,
    Metrics,
    end_lines,
    metrics_variables,
    output_of,
    print_lines,
    restart_lines,
)
from tfdist_cli.table import say

_ISOLATED = "# in a shell of: unshare -cn sh -c 'ip link set lo up; exec sh'"

_SUMMARY = "run a program on several processes"
_DESCRIPTION = """\
Run a program as several processes that know of each other, on this machine or with -H
on several.

Each process gets TF_CONFIG and its rank, its share of the cores, and its rank before
each line that it prints. If one fails, all are ended, and so is everything they have
started; the last line says which rank failed first, and how. With --max-restarts all
are started again, and tfdist.callbacks.BackupAndRestore goes on where it can.

With --workers and --ps they are a chief, workers and parameter servers, and the run is
what the chief does. When it has ended well, the others have a few seconds to end. If it
fails, or a server, the run does. A worker that fails is started again.
"""

_EPILOG = """\
examples:
  tfdist run -np 2 train.py --epochs 3        a script, with this Python
  tfdist run -np 2 -m package.train           a module
  tfdist run --strategy all_reduce -np 2 train.py  a script that never heard of tfdist
  tfdist run -np 2 bash -c 'echo $TFDIST_RANK'  any program
  tfdist run -np 2 --collective horovod train.py  as horovodrun would start it
  tfdist run --workers 2 --ps 1 train.py      a chief with parameter servers
  tfdist run -np 4 --max-restarts 3 train.py  started again when it fails
  tfdist run -H node1:4,node2:4 train.py      on two hosts, by ssh

exit code:
  0 if all is well, that of the process that failed first (128 and the number of a
  signal), 124 when the time is up, 130 after Ctrl-C, 255 if a host is lost. Ctrl-C
  twice kills at once. Of several starts the last counts.

signals:
  SIGTERM and SIGUSR1 reach the ranks; SIGUSR2 prints what each rank does, and its
  stacks, and ends nothing: kill -USR2 PID.
"""


_OPTIONS = {
    "-np N": "how many processes (required, unless hosts or --workers and --ps say it)",
    f"--strategy {'|'.join(STRATEGIES)}": "make this strategy for a script or module "
    "that makes none",
    "--workers N": "in place of -np, with --ps: how many workers, not counting the "
    "chief",
    "--ps N": "how many parameter servers",
    "--evaluator": "with --workers and --ps: one more process, which evaluates the "
    "checkpoints of the chief",
    "--restarts N": "how many times workers that fail are started again, all of them "
    f"together (default: {DEFAULT_RESTARTS}); after that the run goes on without them, "
    "as long as one is left",
    "--max-restarts N": "how many times the whole job is started again after a "
    "failure, to go on from a backup of tfdist.callbacks.BackupAndRestore; not after a "
    "TypeError, ValueError, ImportError or the like before any state is saved",
    "--min-np N": "with --max-restarts: continue with at least N processes; drop slots "
    "that keep failing, if no spare slot of -H can replace them (default: the value of "
    "-np)",
    "--timeout SECONDS": "end the whole run after this time, with exit code 124",
    "--env K=V ...": "set a variable in every process; may be repeated",
    "--dry-run": "print the command of each process, ready to be pasted into a shell",
    "--output all|chief": "with chief, print what the chief prints, and of the others "
    "only tracebacks; the rest goes to the files of --output-dir (default: all)",
    "--output-dir DIR": "also write what each process prints to DIR/rank.0.log and so "
    "on, or to DIR/chief.log, DIR/worker.0.log and DIR/ps.0.log; after the first "
    "restart of the job to DIR/rank.0.restart1.log; and record there what `tfdist "
    "report DIR` and `tfdist blackbox DIR` read",
    "--log-format text|json": "with json, each line becomes a JSON object, on stdout "
    "and in the files (default: text)",
    "--no-tag-output": "do not put the rank before each line",
    "--verbose": "show all that TensorFlow prints; by default its errors only, unless "
    f"you have set {LEVEL_VARIABLE} to 0, for all, or to 1, for its warnings, too",
    "--bind-to core|none": "pin each process to its share of the cores, or of those "
    "near its GPU (default: core, if there are several processes and a core for each; "
    "otherwise none)",
    "--threads-per-process N": "threads of the numerical libraries (default: the "
    "process's share of the cores, or with --workers that of a worker; "
    "TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS and OMP_NUM_THREADS keep the "
    "values that you have set)",
    "--isolate-network": "give the processes a network without other hosts, because "
    "TensorFlow's servers accept every connection; for programs that read no data over "
    "the network",
    "--collective auto|tensorflow|mpi|horovod": "the library that connects the "
    "processes; auto is mpi on one machine with a core but no GPU for each if "
    "'tfdist[mpi]' is installed, and otherwise tensorflow; with mpi, mpirun holds "
    "their places in an MPI job, and with horovod they get what horovodrun --gloo "
    "would give them too",
}
_TUNING = {
    "--fusion-threshold-mb N": "how many MB are sent in one message; 0 sends each "
    "tensor by itself (default: 128)",
    "--cycle-time-ms MS": "how long to wait for more tensors to send together "
    "(default: 1)",
    "--cache-capacity N": "tensors of which the ranks need not agree again (default: "
    "1024)",
    "--stall-check-warning-time-seconds N": "when to warn that some ranks wait for "
    "others (default: 60)",
    "--stall-check-shutdown-time-seconds N": "when to end the job because of that; 0 "
    "is never (default: 0)",
    "--timeline --timeline-filename FILE": "record what Horovod does and when, for "
    "chrome://tracing",
    "--timeline-mark-cycles": "mark Horovod's cycles in the timeline",
    "--autotune": "let Horovod try out fusion threshold and cycle time, and keep the "
    "best",
    "--autotune-log-file FILE": "what it has tried",
    "--no-stall-check": "do not warn when some ranks wait for others",
    "--log-level TRACE|DEBUG|INFO|WARNING|ERROR|FATAL": "the level of Horovod's own "
    "log (default: WARNING)",
}


def add_parser(commands: Commands) -> None:
    """Add the parser of `tfdist run`."""
    parser = add_command(commands, "run", run, _SUMMARY, _DESCRIPTION, _EPILOG)
    parser.usage = (
        "tfdist run (-np N | -H HOSTS | --workers N --ps M) [options] "
        "(train.py | -m module | program) [arguments]"
    )
    types = {"K=V": _variable}
    add_options(parser, _OPTIONS, types, max_restarts=0, collective="auto")
    add_options_of_hosts(parser)
    add_options(parser, METRICS_OPTIONS)
    tuning = parser.add_argument_group(
        "tuning of Horovod",
        "Only with --collective horovod; what is left out is Horovod's default.",
    )
    add_options(tuning, _TUNING, {"MS": float, "FILE": _absolute})
    add_program(parser, "what to run; all that follows it belongs to it")


def run(args: argparse.Namespace) -> int:
    """Run `tfdist run`, and return the exit code."""
    report = partial(print_lines, is_json=args.log_format == "json")
    hosts = hosts_of(args)
    job, limits = _job(args), _limits(args)
    places = hosts.host_of_slots if isinstance(hosts, Hosts) else ()
    restarts = Restarts(args.max_restarts, args.min_np, places)
    check_job(job, restarts, hosts)
    metrics = Metrics(args, is_here=hosts is None)
    if args.isolate_network and hosts is not None:
        raise ValueError(
            "--isolate-network is for processes on one machine. Received: other "
            "hosts. Leave it out, and keep other hosts out with a firewall."
        )
    if args.dry_run:
        say("\n".join([*_remarks(args, restarts), *dry_lines(job, hosts)]))
        return 0
    if args.isolate_network:
        isolate_network()
    attempts = run_job(
        job,
        restarts,
        output=output_of(args),
        limits=limits,
        hosts=hosts,
        on_restart=lambda result, line: report(restart_lines(result, line)),
    )
    report([*end_lines(restarts, attempts), *metrics.report(attempts[-1].result)])
    return attempts[-1].result.exit_code


def _job(args: argparse.Namespace) -> Job:
    """Return the job that the options describe."""
    command = resolve_command(without_dashes(args.command), module=args.m)
    if args.strategy is not None:
        _check_strategy(args)
        command = with_strategy(command, args.strategy)
    env = {**dict(args.env), **_horovod_variables(args), **metrics_variables(args)}
    if args.start_timeout is not None:
        env.setdefault(START_TIMEOUT_VARIABLE, f"{args.start_timeout:g}")
    return Job(
        command,
        size=args.np,
        bind_to=args.bind_to,
        threads_per_process=args.threads_per_process,
        env=env,
        collective=args.collective,
        workers=args.workers,
        evaluator=args.evaluator,
        ps=args.ps,
        verbose=args.verbose,
    )


def _check_strategy(args: argparse.Namespace) -> None:
    """Refuse a strategy that does not fit the processes."""
    has_servers = args.workers is not None or args.ps is not None
    needs_servers = args.strategy == "parameter_server"
    if args.strategy == "auto" or needs_servers == has_servers:
        return
    wanted = "--workers and --ps" if needs_servers else "-np"
    raise ValueError(
        f"--strategy {args.strategy} needs {wanted}. Received: --strategy "
        f"{args.strategy} {'with' if has_servers else 'without'} parameter servers. "
        f"Give {wanted}, or another strategy."
    )


def _limits(args: argparse.Namespace) -> Limits:
    """Return the limits of time and of worker restarts."""
    if args.restarts is None:
        return Limits(timeout_seconds=args.timeout)
    if args.workers is None:
        raise ValueError(
            "--restarts has no effect on ranks, none of which can be missed. "
            f"Received: --restarts {args.restarts} without --workers. Leave it out."
        )
    return Limits(timeout_seconds=args.timeout, worker_restarts=args.restarts)


def _remarks(args: argparse.Namespace, restarts: Restarts) -> list[str]:
    """Return shell comments for a dry run on what its lines do not say."""
    lines = [_ISOLATED] if args.isolate_network else []
    if restarts.max_restarts:
        times = f"up to {restarts.max_restarts} times"
        lines.append(f"# after a failure: all of them again, {times}")
    if restarts.min_size is not None:
        lines[-1] += f", with -np {restarts.min_size} at least"
    return lines


def _horovod_variables(args: argparse.Namespace) -> dict[str, str]:
    """Return Horovod's tuning as variables for all processes."""
    check_outputs(args, "timeline", "autotune_log_file")
    variables = tuning_variables(vars(args))
    if variables and args.collective != "horovod":
        given = ", ".join(given_options(args, *TUNING_OPTIONS))
        raise ValueError(
            "Horovod's tuning has no effect on other collectives. "
            f"Received: {given}. Add --collective horovod, or leave it out."
        )
    for name, value in args.env:
        if name in variables:
            raise ValueError(
                f"{name} is set twice. Received: --env {name}={value}, and an option "
                f"that sets it to {variables[name]}. Leave one of them out."
            )
    return variables


def _absolute(text: str) -> Path:
    """Parse a file, which Horovod needs as an absolute path."""
    return Path(text).absolute()


def _variable(text: str) -> tuple[str, str]:
    """Parse K=V."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(
            f"it must be a name and a value. Received: {text}. Write it as {text}=VALUE"
        )
    return name, value
