"""`tfdist env`: facts about this host and its environment for a bug report."""

import argparse
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import tfdist
from tfdist.cluster.detect import Explanation, explain
from tfdist.cluster.hosts.resources import cgroup_limit
from tfdist.cluster.variables import relevant_variables
from tfdist.horovod_build.installed import find_installed, parts_in
from tfdist_cli.config import facts_of, source_of, text_of
from tfdist_cli.config_text import say
from tfdist_cli.env_devices import Fact, Facts, device_facts
from tfdist_cli.options import Parser, add_command
from tfdist_cli.table import format_table

_DESCRIPTION = """\
Print the facts that a bug report needs: versions, the system, cores, memory, limits,
GPUs, the network, the relevant variables, and the cluster that a program started here
would see. Values of variables whose names look like secrets are hidden; read the rest
before you publish it.
"""

_EPILOG = """\
examples:
  tfdist env                              to paste into an issue
  tfdist env --devices                    TensorFlow's devices as well: takes seconds
  srun tfdist env --json > env.json       of each task of a job

exit code:
  0, also if the environment describes a wrong cluster, which is then reported.
"""

_PACKAGES = (
    "tensorflow",
    "keras",
    "numpy",
    "horovod",
    "tensorflow-datasets",
    "absl-py",
)
# Shown if they are installed.
_OTHER_PACKAGES = ("tensorflow-cpu", "tf-nightly", "tf-keras")
_NOT_INSTALLED = "not installed"
_NO_LIMIT = "none"
_LIMITS = {
    "open_files": "RLIMIT_NOFILE",
    "locked_memory_bytes": "RLIMIT_MEMLOCK",
    "processes": "RLIMIT_NPROC",
    "core_file_bytes": "RLIMIT_CORE",
    "stack_bytes": "RLIMIT_STACK",
}
_NVIDIA_SECONDS = 20.0
# Longer values are cut in tables.
_CHARACTERS = 300
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def add_parser(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist env`."""
    parser = add_command(
        commands,
        "env",
        "print the facts that a bug report needs",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.set_defaults(func=run)
    parser.add_argument(
        "--devices",
        action="store_true",
        help="start TensorFlow as well, and list its devices and how it was built",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON instead of tables"
    )


def run(args: argparse.Namespace) -> int:
    """Run `tfdist env` and return the exit code."""
    env = dict(os.environ)
    try:
        explanation: Explanation | str = explain(env)
    except ValueError as error:
        explanation = str(error)
    sections = _sections(env, explanation)
    if args.devices:
        sections["devices"] = device_facts(env)
    if args.json:
        cluster = (
            {"error": explanation}
            if isinstance(explanation, str)
            else facts_of(explanation, explained=True)
        )
        say(json.dumps({**sections, "cluster": cluster}, indent=2))
    else:
        text = (
            f"The cluster cannot be read: {explanation}"
            if isinstance(explanation, str)
            else f"{text_of(explanation)}\n{source_of(explanation)}"
        )
        say("\n\n".join([*_tables(sections), text]))
    return 0


def keras_facts(env: Mapping[str, str]) -> Facts:
    """Return the backend that Keras would use, and the setting that selects it."""
    # As in Keras, a home that is not writable does not count. Path.home() raises for a
    # user without a home, as in containers.
    home = os.path.expanduser("~")
    folder = Path(home if os.access(home, os.W_OK) else "/tmp", ".keras")
    file = Path(os.path.expanduser(env.get("KERAS_HOME", folder)), "keras.json")
    backend, source = "tensorflow", "Keras's default"
    try:
        written = json.loads(file.read_text()).get("backend")
        if written is not None:
            backend, source = str(written), str(file)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, AttributeError) as error:
        source = f"Keras's default, as {file} cannot be read: {error}"
    if env.get("KERAS_BACKEND"):
        backend, source = env["KERAS_BACKEND"], "KERAS_BACKEND"
    return {"backend": backend, "set_by": source}


def _sections(
    env: Mapping[str, str], explanation: Explanation | str
) -> dict[str, Facts]:
    """Return all facts except the cluster, by section."""
    read = () if isinstance(explanation, str) else explanation.variables
    return {
        "versions": _version_facts(),
        "platform": _platform_facts(),
        "keras": keras_facts(env),
        "horovod": _horovod_facts(),
        **_host_facts(),
        "limits": _limit_facts(),
        "gpus": {
            "nvidia_smi": _nvidia(shutil.which("nvidia-smi", path=env.get("PATH", ""))),
            "visible": env.get("CUDA_VISIBLE_DEVICES", "all"),
        },
        "network": _network_facts(),
        "variables": dict(relevant_variables(env, read)),
    }


def _version_facts() -> Facts:
    """Return the versions of tfdist, Python, and the packages below tfdist."""
    facts: Facts = {"tfdist": tfdist.__version__, "Python": platform.python_version()}
    facts |= {package: _version(package) for package in _PACKAGES}
    others = {package: _version(package) for package in _OTHER_PACKAGES}
    return facts | {
        package: version
        for package, version in others.items()
        if version != _NOT_INSTALLED
    }


def _version(package: str) -> str:
    """Return the version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _NOT_INSTALLED


def _platform_facts() -> Facts:
    """Return the system, and the folders of Python and tfdist."""
    system = platform.uname()
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        distribution = None
    return {
        "system": f"{system.system} {system.release} {system.machine}",
        "distribution": distribution,
        "c_library": " ".join(platform.libc_ver()).strip() or None,
        "python": sys.executable,
        "tfdist_is_in": str(Path(tfdist.__file__).parent),
    }


def _horovod_facts() -> Facts:
    """Return the parts that the installed Horovod was built with."""
    horovod = find_installed()
    if horovod is None:
        return {"folder": _NOT_INSTALLED, "built_in": _NOT_INSTALLED}
    parts = parts_in(horovod.folder)
    return {
        "folder": str(horovod.folder),
        "built_for": f"TensorFlow {horovod.built_for or 'unknown'}",
        "built_in": None if parts is None else list(parts) or "none",
    }


def _host_facts() -> dict[str, Facts]:
    """Return the cores and memory of this host, and the share of this process."""
    import psutil

    allowed = psutil.Process().cpu_affinity()
    memory = psutil.virtual_memory()
    return {
        "cores": {
            "cores": psutil.cpu_count(),
            "physical_cores": psutil.cpu_count(logical=False),
            "cores_allowed": len(allowed),
            "which_are_allowed": ",".join(map(str, allowed)),
            "cgroup_limit": cgroup_limit("cpu"),
        },
        "memory": {
            "total_bytes": memory.total,
            "available_bytes": memory.available,
            "cgroup_limit_bytes": cgroup_limit("memory"),
            "dev_shm_bytes": (
                psutil.disk_usage("/dev/shm").total
                if Path("/dev/shm").is_dir()
                else None
            ),
        },
    }


def _limit_facts() -> Facts:
    """Return the limits of this process."""
    import resource

    facts: Facts = {}
    for name, constant in _LIMITS.items():
        both = resource.getrlimit(getattr(resource, constant))
        soft, hard = (
            _NO_LIMIT if value == resource.RLIM_INFINITY else value for value in both
        )
        facts[name] = soft
        if name == "open_files":
            facts["open_files_at_most"] = hard
    return facts


def _nvidia(command: str | None) -> Fact:
    """Return the GPUs that nvidia-smi lists, or the reason why there is no list."""
    if command is None:
        return _NOT_INSTALLED
    try:
        done = subprocess.run(
            [command, "-L"],
            capture_output=True,
            timeout=_NVIDIA_SECONDS,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"failed: {error}"
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        return f"failed with exit code {done.returncode}: {said}"
    return done.stdout.splitlines() or "none"


def _network_facts() -> Facts:
    """Return the names and the addresses of this host."""
    import psutil

    name = socket.gethostname()
    found: dict[socket.AddressFamily, list[str]] = {}
    for interface, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            found.setdefault(address.family, []).append(
                f"{interface} {address.address}"
            )
    try:
        resolved: Fact = sorted(
            {str(info[4][0]) for info in socket.getaddrinfo(name, 0)}
        )
    except OSError as error:
        resolved = f"nowhere: {error.strerror or error}"
    ports = Path("/proc/sys/net/ipv4/ip_local_port_range")
    return {
        "host_name": name,
        "its_name_leads_to": resolved,
        "ipv4_addresses": found.get(socket.AF_INET, []),
        "ipv6_addresses": found.get(socket.AF_INET6, []),
        "outgoing_ports": (
            "-".join(ports.read_text().split()) if ports.exists() else None
        ),
    }


def _tables(sections: Mapping[str, Facts]) -> list[str]:
    """Return a table for each section that is not empty."""
    return [
        format_table([section, "value"], _rows(section, facts), numbers=False)
        for section, facts in sections.items()
        if facts
    ]


def _rows(section: str, facts: Facts) -> Sequence[Sequence[str]]:
    """Return the rows of a section; a list has a row for each element."""
    rows = []
    for name, fact in facts.items():
        label = name.removesuffix("_bytes")
        if section != "variables":
            label = label.replace("_", " ")
        values: Sequence[Any] = fact if isinstance(fact, list) else [fact]
        for value in values or ["none"]:
            rows.append([label, _cell(name, value)])
            label = ""
    return rows


def _cell(name: str, fact: Fact) -> str:
    """Format a fact for a table."""
    if fact is None:
        return "unknown"
    if name.endswith("_bytes") and isinstance(fact, int | float):
        return _size(fact)
    # A line break would end the row, and a bar would end the cell.
    text = f"{fact:g}" if isinstance(fact, float) else str(fact)
    text = text.replace("\\", "\\\\") if "\n" in text else text
    text = text.replace("\n", "\\n").replace("|", "\\|")
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]} ..."


def _size(size_bytes: float) -> str:
    """Format a number of bytes with a suitable unit."""
    unit = 0
    while size_bytes >= 1024 and unit + 1 < len(_UNITS):
        size_bytes /= 1024
        unit += 1
    return f"{size_bytes:.3g} {_UNITS[unit]}" if unit else f"{size_bytes:g} B"
