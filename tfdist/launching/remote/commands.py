"""Commands that start the agent on another host, and the variables it gets."""

import shlex
from collections.abc import Mapping
from pathlib import PurePath

from tfdist.cluster.this_host import VISIBLE_VARIABLE

# No password and no terminal; the user's ssh config provides the rest.
_SSH_OPTIONS = ("-T", "-o", "BatchMode=yes")
# A step that overlaps all others, with all cores of the job on that node.
_SRUN_OPTIONS = (
    *("--overlap", "--nodes=1", "--ntasks=1", "--unbuffered"),
    *("--cpu-bind=none", "--mpi=none"),
)
# Variables specific to a host, a login or the launcher of this process.
_NOT_CARRIED = (
    *("DISPLAY", "HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL"),
    *("SHLVL", "TERM", "TMPDIR", "USER", "XAUTHORITY", "_"),
)
# Variables by which Slurm would give the step of a host a share of it, ask for the GPUs
# of all hosts there, or start several agents.
_SHARES_OF_SLURM = (
    *("SLURM_GPUS", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK"),
    *("SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES", "SLURM_TRES_PER_TASK"),
    "SRUN_CPUS_PER_TASK",
)
_PREFIXES_NOT_CARRIED = ("DBUS_", "OMPI_", "PMI", "SLURM", "SSH_", "XDG_")


def ssh_command(ssh: str, host: str, line: str) -> list[str]:
    """Return the command that runs a line on a host, through ssh or Slurm's srun."""
    words = split_ssh(ssh)
    if PurePath(words[0]).name == "srun":
        return [*words, *_SRUN_OPTIONS, f"--nodelist={host}", "sh", "-c", line]
    # What follows -- is no option, even if it begins with a dash.
    return [*words, *_SSH_OPTIONS, "--", host.strip("[]"), line]


def split_ssh(ssh: str) -> list[str]:
    """Return the words of the command that reaches the hosts."""
    try:
        words, problem = shlex.split(ssh), ""
    except ValueError as error:
        words, problem = [], f" ({error})"
    if not words:
        raise ValueError(
            "--ssh must be a command that reaches the hosts. Received: "
            f"--ssh {ssh!r}{problem}. Leave it out for ssh, or write --ssh 'ssh -p 22'."
        )
    return words


def agent_line(folder: str, python: str, pythonpath: str | None, slots: int) -> str:
    """Return the shell line that starts the agent in a folder."""
    words = [python, "-m", "tfdist.launching.remote.agent", str(slots)]
    if pythonpath is not None:
        words = ["env", f"PYTHONPATH={pythonpath}", *words]
    return f"cd {shlex.quote(folder)} && exec {shlex.join(words)}"


def local_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the command that reaches a host."""
    return {n: v for n, v in environ.items() if n not in _SHARES_OF_SLURM}


def carried_environment(
    environ: Mapping[str, str], visible: str | None
) -> dict[str, str]:
    """Return the variables that are not specific to a host, a login or a process."""
    # A batch system may have chosen the GPUs of that host; an identifier, unlike a
    # number, is of one host.
    has_own = visible is not None
    has_own |= any(map(str.isalpha, environ.get(VISIBLE_VARIABLE, "")))
    left_out = {*_NOT_CARRIED, *([VISIBLE_VARIABLE] if has_own else [])}
    return {
        name: value
        for name, value in environ.items()
        if name not in left_out and not name.startswith(_PREFIXES_NOT_CARRIED)
    }
