"""`tfdist verify`: check that N processes train a script as one process does."""

import argparse

from tfdist.verify import Orders, verify
from tfdist_cli.options import (
    Commands,
    add_command,
    add_options,
    add_program,
    check_outputs,
    python_program,
)
from tfdist_cli.table import format_table

_SUMMARY = "check that several processes train a script as one does"
_DESCRIPTION = """\
Check whether several processes train a script as one process does.

The script runs twice in the current folder, with one process and with N, for its first
steps of training and with all of its effects, such as writing files. Both runs begin
with the same seed and train on the same global batches; then weights, optimizer,
metrics and other state are compared. If they differ, up to three more runs, of one
process with the rows in other orders, measure the rounding of the script. The report
names the first variable that differs by more, the likely cause and the remedy. The
script is not changed.
"""

_EPILOG = """\
examples:
  tfdist verify train.py --epochs 3           two processes, ten steps
  tfdist verify -np 3 --float64 train.py      a sharper comparison
  tfdist verify -m package.train              a module
  tfdist verify --strategy all_reduce train.py  a script that never heard of tfdist

exit code:
  0 for PASS, 1 for FAIL, 2 if the script could not be run; 130 after Ctrl-C.
"""


_OPTIONS = {
    "-np N": "how many processes are compared with one",
    "--steps N": "stop the script after this many steps of training",
    "--strategy all_reduce|horovod": "make this strategy for a script or module that "
    "makes none",
    "--collective tensorflow|horovod": "the library that connects the processes",
    "--timeout SECONDS": "give up after this time, with exit code 2",
    "--json FILE": "write the verdict to a file, too",
    "--output-dir DIR": "write what the script prints to DIR/one and DIR/all, a file a "
    "rank; that of further runs to DIR/shuffled-1 and so on",
    "--float64": "let Keras compute in float64, where rounding hides nothing; a script "
    "that sets its own type keeps it",
    "--seed N": "the seed of every process",
}


def add_parser(commands: Commands) -> None:
    """Add the parser of `tfdist verify`."""
    parser = add_command(commands, "verify", run, _SUMMARY, _DESCRIPTION, _EPILOG)
    parser.usage = "tfdist verify [options] (train.py | -m module) [arguments]"
    add_options(parser, _OPTIONS, np=2, steps=10, collective="tensorflow", seed=1)
    add_program(parser, "the script; all that follows it belongs to it")


def run(args: argparse.Namespace) -> int:
    """Run `tfdist verify`, and return the exit code."""
    orders = Orders(
        python_program(args, "verified"),
        size=args.np,
        steps=args.steps,
        module=args.m,
        float64=args.float64,
        seed=args.seed,
        collective=args.collective,
        strategy=args.strategy,
    )
    check_outputs(args, "json")
    verdict = verify(
        orders, timeout_seconds=args.timeout, output_directory=args.output_dir
    )
    # Imported late: NumPy would slow down every other command.
    from tfdist.verify.verdict import json_of, text_of

    script = orders.command[0]
    print(text_of(verdict, script, steps=orders.steps, table=format_table))
    if args.json is not None:
        args.json.write_text(f"{json_of(verdict)}\n")
    return 0 if verdict.passed else 1
