"""What is run on another host, and with which environment."""

import shlex
from collections.abc import Mapping
from pathlib import PurePath

# Without a password, without a terminal, and with what the user's own files say.
DEFAULT_SSH = "ssh"
_SSH_OPTIONS = ("-T", "-o", "BatchMode=yes")
# A step beside all others, with all cores of the job on that node.
_SRUN_OPTIONS = (
    *("--overlap", "--nodes=1", "--ntasks=1", "--unbuffered"),
    *("--cpu-bind=none", "--mpi=none"),
)
# What is a host's own, that of the login there, or of the launcher of this process.
_NOT_CARRIED = frozenset(
    (
        *("DISPLAY", "HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL"),
        *("SHLVL", "TERM", "TMPDIR", "USER", "XAUTHORITY", "_"),
    )
)
_PREFIXES_NOT_CARRIED = ("DBUS_", "OMPI_", "PMI", "SLURM", "SSH_", "XDG_")


def ssh_command(ssh: str, host: str, line: str) -> list[str]:
    """Return the program that has a shell on a host run a line.

    Args:
        ssh: The command that reaches it, with options of the user: one that takes
            those of ssh, or `srun` within a job of Slurm.
        host: The host.
        line: The line.

    Returns:
        The program and its arguments.

    Example:
        >>> shlex.join(ssh_command("ssh -p 2222", "node2", "true"))
        'ssh -p 2222 -T -o BatchMode=yes node2 true'
    """
    words = shlex.split(ssh)
    if PurePath(words[0]).name == "srun":
        return [*words, *_SRUN_OPTIONS, f"--nodelist={host}", "sh", "-c", line]
    return [*words, *_SSH_OPTIONS, host.strip("[]"), line]


def agent_line(folder: str, python: str, pythonpath: str | None) -> str:
    """Return the line with which a shell on the host starts the agent.

    Args:
        folder: The working directory of the ranks.
        python: The interpreter, as a path there.
        pythonpath: Where Python looks for packages besides; None for nowhere.

    Returns:
        A line that every usual shell understands.

    Example:
        >>> agent_line("/home/me", "/usr/bin/python3", None)
        'cd /home/me && exec /usr/bin/python3 -m tfdist.launch.agent'
    """
    words = [python, "-m", "tfdist.launch.agent"]
    if pythonpath is not None:
        words = ["env", f"PYTHONPATH={pythonpath}", *words]
    return f"cd {shlex.quote(folder)} && exec {shlex.join(words)}"


def carried_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that ranks on other hosts are given.

    Args:
        environ: The launcher's environment.

    Returns:
        All but those that belong to a host, to a login, or to a single process.

    Example:
        >>> carried_environment({"HOME": "/root", "SSH_TTY": "1", "DATA": "/data"})
        {'DATA': '/data'}
    """
    return {
        name: value
        for name, value in environ.items()
        if name not in _NOT_CARRIED and not name.startswith(_PREFIXES_NOT_CARRIED)
    }
