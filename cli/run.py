"""`tfdist run`: a program on several processes."""

import argparse
import signal
import sys
from collections.abc import Sequence

from tfdist.launch import (
    DEFAULT_RESTARTS,
    EXIT_CODE_OF_SIGNAL,
    Attempt,
    Job,
    Limits,
    Restarts,
    RunResult,
    resolve_command,
    run_job,
)
from tfdist_cli.options import Parser, add_command, add_program, without_dashes
from tfdist_cli.run_hosts import (
    add_options_of_hosts,
    dry_lines,
    hosts_of,
    start_variables,
)
from tfdist_cli.run_options import (
    add_general_options,
    add_options_of_cores,
    add_options_of_horovod,
    add_options_of_output,
    add_options_of_restarts,
    add_options_of_size,
    horovod_variables,
    output_of,
    restart_comments,
    restarts_of,
)

# Characters of each line that is repeated after a failure.
_LONGEST_SHOWN = 300

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
    """Add the parser of `tfdist run`."""
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
    add_options_of_size(parser)
    add_options_of_hosts(parser)
    add_options_of_restarts(parser)
    add_general_options(parser)
    add_options_of_output(parser)
    add_options_of_cores(parser)
    add_options_of_horovod(parser)
    add_program(parser, "what to run; all that follows it belongs to it")


def run(args: argparse.Namespace) -> int:
    """Carry out `tfdist run`, and return the exit code."""
    try:
        hosts = hosts_of(args)
        _check_options_of_size(args)
        job = _job(args)
        restarts = restarts_of(args, job)
        if hosts is not None:
            hosts.check(job, restarts)
        if args.dry_run:
            print(*restart_comments(restarts), *dry_lines(job, hosts), sep="\n")
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
        # No process had been started yet.
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
    """Refuse a call without a number of processes, and options without effect."""
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


def report_restart(result: RunResult, line: str) -> None:
    """Print the last lines of the process that failed, and why the job restarts."""
    _print([*_last_lines(result), line])


def report_end(restarts: Restarts, attempts: Sequence[Attempt]) -> None:
    """Print the restarts, and the failure if there is one; nothing if all is well."""
    result = attempts[-1].result
    lines = restarts.report(attempts)
    if result.reason != "done":
        lines += [*_last_lines(result), result.headline()]
    _print(lines)


def _last_lines(result: RunResult) -> list[str]:
    """Return the last lines of the process that failed first, with a heading."""
    if result.failed_rank is None:
        return []
    failed = result.exit_of(result.failed_rank)
    shown = [f"    {line[:_LONGEST_SHOWN]}" for line in failed.tail]
    return [f"the last lines of {failed.name}:", *shown] if shown else []


def _print(lines: Sequence[str]) -> None:
    """Print lines on stderr, with the name of the command before our own."""
    for line in lines:
        is_quoted = line.startswith(" ")
        print(line if is_quoted else f"tfdist run: {line}", file=sys.stderr)
