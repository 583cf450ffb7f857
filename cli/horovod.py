"""`tfdist horovod`: building and checking Horovod for the installed TensorFlow."""

import argparse
import os
import sys
from pathlib import Path

from tfdist.horovod_build import (
    HOROVOD_VERSION,
    BuildError,
    check,
    default_log,
    install,
)
from tfdist_cli.options import Commands, add_command, add_options

_DESCRIPTION = """\
Build Horovod for the installed TensorFlow, or check it. Horovod runs the collectives of
AllReduceStrategy(collective="horovod"), on Gloo, MPI or NCCL.
"""

_INSTALL = f"""\
Build Horovod {HOROVOD_VERSION} for the TensorFlow of this environment, and install it.

Needs a C++ compiler and make, and neither root nor a GPU. It takes two to four minutes
on two cores, and ends with an all-reduce on two processes. Where a fitting Horovod is
installed and works, nothing is built.

Horovod's own options are passed on, as environment variables: HOROVOD_WITH_MPI,
HOROVOD_WITHOUT_MPI, HOROVOD_GPU_OPERATIONS, HOROVOD_NCCL_HOME, HOROVOD_CUDA_HOME and
others. Gloo is built in unless HOROVOD_WITHOUT_GLOO=1, MPI where mpicxx is there.
"""

_INSTALL_EPILOG = """\
examples:
  tfdist horovod install
  HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_HOME=/opt/nccl tfdist horovod install
  MAKEFLAGS=-j1 tfdist horovod install        little memory: one file at a time

exit code:
  0 if Horovod works, 1 if the build or the all-reduce failed, 2 if something that it
  needs is missing; 130 after Ctrl-C.
"""

_CHECK = """\
Say what is built into the installed Horovod, for which TensorFlow, and whether two
processes can add up through it here.
"""

_CHECK_EPILOG = """\
exit code:
  0 if Horovod can be used here, otherwise 1; 130 after Ctrl-C.
"""


_INSTALL_OPTIONS = {
    "--force": "build even if a fitting Horovod works",
    "--log FILE": "where to write what the build prints "
    "(default: tfdist/horovod-install.log in XDG_CACHE_HOME or ~/.cache)",
}


def add_parser(commands: Commands) -> None:
    """Add the parser of `tfdist horovod`."""
    summary = "build Horovod for the installed TensorFlow, or check it"
    parser = add_command(commands, "horovod", None, summary, _DESCRIPTION)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    texts = "build and install Horovod, and try it", _INSTALL, _INSTALL_EPILOG
    add_options(add_command(actions, "install", _install, *texts), _INSTALL_OPTIONS)
    texts = "say what is built in, and try it", _CHECK, _CHECK_EPILOG
    add_command(actions, "check", _check, *texts)


def _install(args: argparse.Namespace) -> int:
    """Run `tfdist horovod install`, and return the exit code."""
    env = dict(os.environ)
    log = args.log or default_log(env, Path("~").expanduser())
    install(env, log=log, stream=sys.stdout, force=args.force)
    return 0


def _check(args: argparse.Namespace) -> int:
    """Run `tfdist horovod check`, and return the exit code."""
    try:
        check(os.environ, stream=sys.stdout)
    except BuildError as error:
        error.exit_code = 1
        raise
    return 0
