"""One process that is to be started: its command, its environment, its cores."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.cluster import Task
from tfdist.launch.roles import name_of


@dataclass(frozen=True)
class ProcessSpec:
    """One process that is to be started.

    Args:
        rank: Its number among the processes of the run, from 0; for a process that
            trains it is its rank.
        argv: The program, as a path, and its arguments.
        env: The variables in which its environment differs from the launcher's.
        cores: The cores that it is pinned to. Default none: it may use all.
        unset: The variables of the launcher that it must not inherit. Default none.
        task: Its task in a job with parameter servers. Default None: one of several
            ranks that are all alike.
        host: The host it is on. Default None: this machine, of which nobody speaks.
    """

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cores: tuple[int, ...] = ()
    unset: tuple[str, ...] = ()
    task: Task | None = None
    host: str | None = None

    @property
    def name(self) -> str:
        """What it is called in messages: "rank 0", "chief", "worker 0", "ps 0"."""
        return name_of(self.rank, self.task)

    @property
    def tag(self) -> str:
        """What stands before each line that it prints: its name, or only its rank."""
        name = str(self.rank) if self.task is None else self.name
        return name if self.host is None else f"{name} {self.host}"

    @property
    def log_name(self) -> str:
        """The name of its log file: "rank.0.log", "chief.log", "worker.0.log"."""
        return f"{self.name.replace(' ', '.')}.log"

    def shell_line(self) -> str:
        """Write the process as one line that can be pasted into a shell.

        Returns:
            A command that starts the same program, in the same environment and on the
            same cores.

        Example:
            >>> ProcessSpec(0, ("/bin/echo", "a b"), {"X": "1"}, (2, 3)).shell_line()
            "env X=1 taskset -c 2,3 /bin/echo 'a b'"
        """
        variables = [f"{name}={value}" for name, value in self.env.items()]
        unset = [word for name in self.unset for word in ("-u", name)]
        pin = ["taskset", "-c", ",".join(map(str, self.cores))] if self.cores else []
        return shlex.join(["env", *unset, *variables, *pin, *self.argv])
