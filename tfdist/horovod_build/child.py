"""Programs in processes of their own, ended with all that they have started."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class Ended:
    """How a program has ended.

    Args:
        code: Its exit code; None if its time was up.
        output: What it has printed, stderr included.
    """

    code: int | None
    output: str

    def last_lines(self, count: int = 5) -> str:
        """Return the end of the output, indented.

        Args:
            count: How many lines. Default 5.

        Returns:
            The lines that are not empty.
        """
        lines = [line for line in self.output.splitlines() if line.strip()]
        return "\n".join(f"    {line}" for line in lines[-count:])


def run_child(
    command: Sequence[str], env: Mapping[str, str], *, timeout_seconds: float
) -> Ended:
    r"""Run a program in a session of its own, for a limited time.

    Args:
        command: The program and its arguments.
        env: Its environment.
        timeout_seconds: How long it may take.

    Returns:
        How it has ended.

    Example:
        >>> run_child(["echo", "done"], {}, timeout_seconds=60)
        Ended(code=0, output='done\n')
    """
    with subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            return Ended(None, _end(process))
        except BaseException:
            _end(process)
            raise
    return Ended(process.returncode, output)


def _end(process: "subprocess.Popen[str]") -> str:
    """Let a program end its own children, then kill what is left; return its output."""
    process.terminate()
    try:
        output, _ = process.communicate(timeout=_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return output
