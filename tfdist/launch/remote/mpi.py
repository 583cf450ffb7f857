"""MPI between hosts: the way of `mpirun` to them, and the network of the ranks."""

import os
import shlex
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from tfdist.cluster.address import is_loopback, look_up, split_address
from tfdist.launch.job import ProcessSpec
from tfdist.launch.remote.host import RemoteHost, ssh_command

_NETWORK_VARIABLE = "OMPI_MCA_btl_tcp_if_include"
# <linux/prctl.h>: PR_SET_PDEATHSIG is 1, SIGTERM is 15.
_END_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


def options_of_mpirun(remote: Mapping[str, RemoteHost], folder: str) -> list[str]:
    """Return options with which `mpirun` reaches the hosts by our ssh, if any."""
    if not remote:
        return []
    ssh = next(iter(remote.values())).ssh
    line = shlex.join(ssh_command(ssh, "@HOST@", "@LINE@"))
    line = line.replace("@HOST@", '"$host"').replace("@LINE@", '"$*"')
    script = Path(folder, "ssh.sh")
    # `mpirun` that is killed would leave its ssh.
    python = shlex.join([sys.executable, "-I", "-S", "-c", _END_WITH_PARENT])
    script.write_text(f"host=$1\nshift\nexec {python} {line}\n")
    agent = ["--prtemca", "plm_ssh_agent", f"sh {script}"]
    # Other hosts do not have that file, and need not reach each other by ssh.
    return [*agent, "--prtemca", "plm_ssh_no_tree_spawn", "1"]


def host_of(spec: ProcessSpec, remote: Collection[str]) -> str:
    """Return the name by which `mpirun` knows the host of a rank, "" for one host."""
    if not remote:
        return ""
    return spec.host if spec.host and spec.host in remote else "localhost"


def network(spec: ProcessSpec, remote: Collection[str]) -> dict[str, str]:
    """Return the variable that keeps a rank to the addresses of its host's name."""
    if not remote or spec.host is None or _NETWORK_VARIABLE in os.environ:
        return {}
    try:
        found = look_up(split_address(f"{spec.host}:1")[0])
    except OSError:
        return {}
    # MPI might choose a bridge of containers, whose address is that of the bridges of
    # other hosts. In Open MPI 5.0 a prefix of 32 bits matches every address.
    own = [f"{one}/31" for one in found if ":" not in one and not is_loopback(one)]
    return {_NETWORK_VARIABLE: ",".join(sorted(own))} if own else {}
