"""Why a host could not be used, from what ssh and the shell there have printed."""

from dataclasses import dataclass

# What ssh itself returns when it fails; everything else is of the command it has run.
_OF_SSH = 255
_LONGEST_SHOWN = 300


@dataclass(frozen=True)
class _Cause:
    """A cause, and how to know it.

    Args:
        sign: What is printed then.
        what: What is wrong, with {host}, {python} and {folder}.
        advice: What to do.
    """

    sign: str
    what: str
    advice: str


_CAUSES = (
    _Cause(
        "No module named",
        "tfdist is not installed for {python} on {host}.",
        "Make the same environment there as here, or name its interpreter: --python.",
    ),
    _Cause(
        "Host key verification failed",
        "The key of the host {host} is not known here, or has changed.",
        "Connect to it once by hand and compare the key: ssh {host}",
    ),
    _Cause(
        "Permission denied",
        "{host} does not let you in without a password.",
        "Put your public key there: ssh-copy-id {host}",
    ),
    _Cause(
        "Could not resolve hostname",
        "The name of the host {host} is not known here.",
        "Correct the name, or give the host an entry in ~/.ssh/config.",
    ),
    _Cause(
        "Connection refused",
        "No ssh server listens on {host}.",
        "Start sshd there, or give its port, as in --ssh 'ssh -p 2222'.",
    ),
    _Cause(
        "timed out",
        "{host} does not answer.",
        "See that it is up, and that no firewall is between: ssh {host} true",
    ),
    _Cause(
        "No route to host",
        "There is no way to {host}.",
        "See that it is up, and that no firewall is between: ssh {host} true",
    ),
    _Cause(
        "{folder}",
        "The working directory does not exist on {host}.",
        "Start from a folder that all hosts have, as on a shared file system.",
    ),
    _Cause(
        "{python}",
        "There is no such interpreter on {host}.",
        "Make the same environment there as here, or name its interpreter: --python.",
    ),
)


def explain_failure(
    host: str,
    python: str,
    folder: str,
    exit_code: int | None,
    printed: str,
    error: Exception,
) -> str:
    """Say why no agent answers on a host, or does no longer.

    Args:
        host: The host.
        python: The interpreter there.
        folder: The working directory there.
        exit_code: How the connection has ended; None if it has not.
        printed: What it has printed on stderr.
        error: What was noticed here.

    Returns:
        What is wrong, what was received, and what to do.
    """
    names = {"host": host.strip("[]"), "python": python, "folder": folder}
    for cause in _CAUSES if exit_code else ():
        if cause.sign.format(**names) in printed:
            last = _last_line(printed, cause.sign.format(**names))
            what, advice = cause.what.format(**names), cause.advice.format(**names)
            return f"{what} Received: {last}. {advice}"
    received = _last_line(printed) or str(error) or "nothing"
    if isinstance(error, ValueError):
        return (
            f"What answers on {host} is not tfdist. Received: {error} "
            f"See what runs there: ssh {names['host']} {python} --version"
        )
    if exit_code is None:
        return (
            f"{host} has not answered in time. Received: {received}. "
            f"See what takes so long: ssh {names['host']} true; or give it more time: "
            "--start-timeout."
        )
    return (
        f"The connection to {host} has ended with exit code {exit_code}. "
        f"Received: {received}. Try by hand: ssh {names['host']} {python} --version"
    )


def _last_line(printed: str, sign: str = "") -> str:
    """Return the last line that holds a sign, without its end."""
    lines = [line.strip() for line in printed.splitlines() if sign in line]
    return lines[-1][:_LONGEST_SHOWN].rstrip(".\r") if lines else ""
