"""`tfdist config`: describing a cluster, and checking what describes one."""

import argparse

from tfdist_cli import config_build, config_check, config_show
from tfdist_cli.options import add_command
from tfdist_cli.parser import Parser

_DESCRIPTION = """\
Check, show and build TF_CONFIG, the variable that tells each process of a job who the
others are and which of them it is.
"""


def add_parser(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist config`.

    Args:
        commands: What `add_subparsers` has returned.
    """
    parser = add_command(
        commands,
        "config",
        "check, show and build TF_CONFIG",
        description=_DESCRIPTION,
        epilog="What each says, and why: docs/config.md",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    config_check.add_parser(actions)
    config_show.add_parser(actions)
    config_build.add_parser(actions)
