"""`tfdist env`: everything about this host and its environment for a bug report."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.cluster.detect import Explanation, explain
from tfdist.cluster.hosts.resources import (
    Fact,
    Facts,
    core_facts,
    gpu_facts,
    limit_facts,
    memory_facts,
    network_facts,
)
from tfdist.cluster.variables import relevant_variables
from tfdist_cli.config import facts_of, source_of, text_of
from tfdist_cli.config_text import say
from tfdist_cli.env_software import (
    horovod_facts,
    keras_facts,
    platform_facts,
    version_facts,
)
from tfdist_cli.options import add_command
from tfdist_cli.parser import Parser
from tfdist_cli.table import format_table

_DESCRIPTION = """\
Print what a bug report needs: versions, the system, cores, memory, limits, GPUs, the
network, the variables that matter, and the cluster that a program started here would
see. Values of variables whose names look like secrets are hidden; read the rest before
you publish it.
"""

_EPILOG = """\
examples:
  tfdist env                              to paste into an issue
  tfdist env --devices                    TensorFlow's devices, too: takes seconds
  srun tfdist env --json > env.json       of each task of a job

exit code:
  0, also if the environment describes a wrong cluster, which is then said.
"""

# How much of a long value is printed.
_CHARACTERS = 300
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

Sections = dict[str, Facts]


def add_parser(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist env`.

    Args:
        commands: What `add_subparsers` has returned.
    """
    parser = add_command(
        commands,
        "env",
        "print what a bug report needs",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.set_defaults(func=run)
    parser.add_argument(
        "--devices",
        action="store_true",
        help="start TensorFlow, too, and list its devices and how it was built",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON instead of tables"
    )


def run(args: argparse.Namespace) -> int:
    """Carry out `tfdist env`.

    Args:
        args: What the parser has read.

    Returns:
        The exit code.
    """
    env = dict(os.environ)
    explanation = _explain(env)
    sections = _sections(env, explanation)
    if args.devices:
        # Imported here, as it starts processes, which few ask for.
        from tfdist_cli.env_devices import device_facts

        sections["devices"] = device_facts(env)
    if args.json:
        say(json.dumps({**sections, "cluster": _cluster_facts(explanation)}, indent=2))
    else:
        say("\n\n".join([*_tables(sections), _cluster_text(explanation)]))
    return 0


def _explain(env: Mapping[str, str]) -> Explanation | str:
    """Return the cluster, or what is wrong with it."""
    try:
        return explain(env)
    except ValueError as error:
        return str(error)


def _sections(env: Mapping[str, str], explanation: Explanation | str) -> Sections:
    """Return all facts but the cluster, by section."""
    read = () if isinstance(explanation, str) else explanation.variables
    return {
        "versions": version_facts(),
        "platform": platform_facts(),
        # Unlike Path("~").expanduser() it is no error where a user has no home, as in
        # containers.
        "keras": keras_facts(env, Path(os.path.expanduser("~"))),
        "horovod": horovod_facts(),
        "cores": core_facts(),
        "memory": memory_facts(),
        "limits": limit_facts(),
        "gpus": gpu_facts(env),
        "network": network_facts(),
        "variables": dict(relevant_variables(env, read)),
    }


def _cluster_facts(explanation: Explanation | str) -> dict[str, Any]:
    """Return the cluster for programs."""
    if isinstance(explanation, str):
        return {"error": explanation}
    return facts_of(explanation, explained=True)


def _cluster_text(explanation: Explanation | str) -> str:
    """Return the cluster for people."""
    if isinstance(explanation, str):
        return f"The cluster cannot be read: {explanation}"
    return f"{text_of(explanation)}\n{source_of(explanation)}"


def _tables(sections: Sections) -> list[str]:
    """Return a table for each section that has something to say."""
    return [
        format_table([section, "value"], _rows(section, facts), numbers=False)
        for section, facts in sections.items()
        if facts
    ]


def _rows(section: str, facts: Facts) -> Sequence[Sequence[str]]:
    """Return the rows of a section; of a list, a row each."""
    rows = []
    for name, fact in facts.items():
        label = name.removesuffix("_bytes")
        if section != "variables":
            label = label.replace("_", " ")
        values = fact if isinstance(fact, list) else [fact]
        for value in values or ["none"]:
            rows.append([label, _cell(name, value)])
            label = ""
    return rows


def _cell(name: str, fact: Fact) -> str:
    """Return a fact as it stands in a table."""
    if fact is None:
        return "unknown"
    if name.endswith("_bytes") and isinstance(fact, int | float):
        return _size(fact)
    # A line break would end the row, and a bar the cell.
    text = f"{fact:g}" if isinstance(fact, float) else str(fact)
    text = text.replace("\\", "\\\\") if "\n" in text else text
    text = text.replace("\n", "\\n").replace("|", "\\|")
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]} ..."


def _size(size_bytes: float) -> str:
    """Return a number of bytes in the unit that suits it."""
    unit = 0
    while size_bytes >= 1024 and unit + 1 < len(_UNITS):
        size_bytes /= 1024
        unit += 1
    return f"{size_bytes:.3g} {_UNITS[unit]}" if unit else f"{size_bytes:g} B"
