"""`tfdist run`: a program on several processes."""

import argparse
import signal

from tfdist.launch import (
    DEFAULT_RESTARTS,
    EXIT_CODE_OF_SIGNAL,
    Job,
    Limits,
    resolve_command,
    run_job,
)
from tfdist_cli.options import add_command, add_program, without_dashes
from tfdist_cli.parser import Parser
from tfdist_cli.run_horovod import add_options_of_horovod, horovod_variables
from tfdist_cli.run_hosts import (
    add_options_of_hosts,
    dry_lines,
    hosts_of,
    start_variables,
)
from tfdist_cli.run_output import add_options_of_output, output_of
from tfdist_cli.run_report import report_end, report_restart
from tfdist_cli.run_restarts import add_options_of_restarts, remarks, restarts_of

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
  tfdist run -np 2 bash -c 'echo $TFDIST_RANK'  any program
  tfdist run -np 2 --collective horovod train.py  as horovodrun would start it
  tfdist run --workers 2 --ps 1 train.py      a chief with parameter servers
  tfdist run -np 4 --max-restarts 3 train.py  started again when it fails
  tfdist run -H node1:4,node2:4 train.py      on two hosts, by ssh

exit code:
  0 if all is well, that of the process that failed first (128 and the number of a
  signal), 124 when the time is up, 130 after Ctrl-C. Ctrl-C twice kills at once. Of
  several starts the last counts.
"""


def add_parser(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist run`.

    Args:
        commands: What `add_subparsers` has returned.
    """
    parser = add_command(
        commands,
        "run",
        "run a program on several processes",
        usage="tfdist run (-np N | -H HOSTS | --workers N --ps M) [options] "
        "(train.py | -m module | program) [arguments]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.set_defaults(func=run)
    _add_options_of_size(parser)
    add_options_of_hosts(parser)
    add_options_of_restarts(parser)
    _add_options(parser)
    add_options_of_output(parser)
    _add_options_of_cores(parser)
    add_options_of_horovod(parser)
    add_program(parser, "what to run; all that follows it belongs to it")


def run(args: argparse.Namespace) -> int:
    """Carry out `tfdist run`.

    Args:
        args: What the parser has read.

    Returns:
        The exit code.
    """
    try:
        hosts = hosts_of(args)
        _check_options_of_size(args)
        job = _job(args)
        restarts = restarts_of(args, job)
        if hosts is not None:
            hosts.check(job, restarts)
        if args.dry_run:
            print(*remarks(restarts), *dry_lines(job, hosts), sep="\n")
            return 0
        attempts = run_job(
            job,
            restarts,
            output=output_of(args),
            limits=Limits(
                timeout_seconds=args.timeout,
                worker_restarts=DEFAULT_RESTARTS
                if args.restarts is None
                else args.restarts,
            ),
            hosts=hosts,
            on_restart=report_restart,
        )
    except (ImportError, OSError, ValueError) as error:
        args.parser.error(str(error))
    except KeyboardInterrupt:
        # Nothing had been started yet.
        return EXIT_CODE_OF_SIGNAL + signal.SIGINT
    report_end(restarts, attempts)
    return attempts[-1].result.exit_code


def _job(args: argparse.Namespace) -> Job:
    """Return the job that the options describe."""
    return Job(
        resolve_command(without_dashes(args.command), module=args.module),
        size=args.size,
        bind_to=args.bind_to,
        threads_per_process=args.threads_per_process,
        env=start_variables(args) | dict(args.env) | horovod_variables(args),
        collective=args.collective,
        workers=args.workers,
        evaluator=args.evaluator,
        ps=args.ps,
    )


def _check_options_of_size(args: argparse.Namespace) -> None:
    """Refuse a call that does not say how many, and what has no effect."""
    if args.size is None and args.workers is None and args.ps is None:
        args.parser.error(
            "-np is missing: give the number of processes, as in -np 2, or hosts with "
            "-H, or for parameter servers --workers and --ps"
        )
    if args.restarts is not None and args.workers is None:
        args.parser.error(
            "--restarts has no effect on ranks, none of which can be missed. "
            f"Received: --restarts {args.restarts} without --workers. Leave it out."
        )


def _add_options_of_size(parser: Parser) -> None:
    """Add the options that say how many processes, and of which kind."""
    parser.add_argument(
        "-np",
        dest="size",
        type=int,
        metavar="N",
        help="how many processes (required, unless there are parameter servers)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="in place of -np, with --ps: how many workers, besides the chief",
    )
    parser.add_argument(
        "--ps", type=int, metavar="M", help="how many parameter servers"
    )
    parser.add_argument(
        "--evaluator",
        action="store_true",
        help="with --workers and --ps: a process besides, whose task is evaluator, for "
        "what evaluates the checkpoints of the chief",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        metavar="R",
        help="how many times workers that fail are started again, all of them together "
        f"(default: {DEFAULT_RESTARTS}); after that the run goes on without them, as "
        "long as one is left",
    )


def _add_options(parser: Parser) -> None:
    """Add the options that are for every kind of run."""
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="end the whole run after this time, with exit code 124",
    )
    parser.add_argument(
        "--env",
        type=_variable,
        action="append",
        default=[],
        metavar="K=V",
        help="set a variable in every process; may be repeated",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the command of each process, ready to be pasted into a shell",
    )


def _add_options_of_cores(parser: Parser) -> None:
    """Add the options that share out the machine."""
    parser.add_argument(
        "--bind-to",
        choices=("core", "none"),
        help="pin each process to its share of the cores (default: core, if there are "
        "several processes and a core for each; otherwise none)",
    )
    parser.add_argument(
        "--threads-per-process",
        type=int,
        metavar="N",
        help="threads of the numerical libraries (default: the process's share of the "
        "cores, or with --workers that of a worker; TF_NUM_INTRAOP_THREADS, "
        "TF_NUM_INTEROP_THREADS and OMP_NUM_THREADS keep the values that you have set)",
    )


def _variable(text: str) -> tuple[str, str]:
    """Read K=V."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(
            f"it must be a name and a value. Received: {text}. Write it as {text}=VALUE"
        )
    return name, value
