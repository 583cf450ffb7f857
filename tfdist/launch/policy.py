"""Who of a job may fail, who is started again, and what ends the job."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from tfdist.cluster import Task
from tfdist.launch.result import how_it_ended
from tfdist.launch.roles import name_of


class Action(Enum):
    """What is to be done when a process has ended."""

    GO_ON = "go on"
    START_AGAIN = "start it again"
    FINISH = "let the others end, as the job is done"
    FAIL = "end the others, as the job has failed"


@dataclass(frozen=True)
class Decision:
    """What is to be done when a process has ended, and what is said at once.

    Args:
        action: What is to be done.
        notice: What the user is told about it in a line. Default nothing.
    """

    action: Action
    notice: str = ""


class Policy:
    """Decides what the end of a process means for the job.

    Ranks are all alike: none can be missed, so each failure is the job's, and the job
    is done when the last has ended. With parameter servers the job is what the chief
    does. A worker holds nothing that is lost with it, so it is started again; a server
    holds variables, and the job fails with it. An evaluator has no part in all this.

    Args:
        tasks: The task of each process in a job with parameter servers, by its number;
            None for each where ranks are all alike.
        restarts: How many times workers are started again, all of them together.

    Attributes:
        is_done: Whether the chief has ended well.

    Example:
        >>> policy = Policy({0: Task("chief", 0), 1: Task("worker", 0)}, restarts=3)
        >>> policy.judge(1, 2).notice
        'worker 0 failed with exit code 2; it is started again (1 of 3).'
    """

    def __init__(self, tasks: Mapping[int, Task | None], *, restarts: int) -> None:
        self._tasks = dict(tasks)
        self._restarts = restarts
        self._restarts_used = 0
        self.is_done = False
        self._workers = {
            rank for rank, task in tasks.items() if task and task.type == "worker"
        }

    def judge(self, rank: int, code: int) -> Decision:
        """Decide what the end of a process means; to be asked once for each end.

        Args:
            rank: Its number among the processes.
            code: Its exit code, or minus the number of the signal that killed it.

        Returns:
            What is to be done.
        """
        task = self._tasks[rank]
        if task is None:
            return Decision(Action.GO_ON if code == 0 else Action.FAIL)
        if task.type == "chief" and code == 0:
            self.is_done = True
            return Decision(Action.FINISH)
        # Nobody needs the others any more, so nobody misses them.
        if self.is_done:
            return Decision(Action.GO_ON)
        if task.type == "worker" and code != 0:
            return self._judge_failed_worker(rank, code)
        self._workers.discard(rank)
        if code != 0 and task.type != "evaluator":
            return Decision(Action.FAIL)
        what = "it is not started again, and the chief goes on without it"
        return self._decide(Action.GO_ON, rank, code, what)

    def suspects(self, failed: Collection[int]) -> set[int]:
        """Return those of several failures that can be the cause of the others.

        A chief fails within moments for want of a server or of its last worker, and may
        seem to have been first. They do not fail for want of the chief.

        Args:
            failed: The numbers of the processes, each of which the job fails with.

        Returns:
            Their numbers, without the chief's if there are others.
        """
        tasks = {rank: self._tasks[rank] for rank in failed}
        others = {
            rank for rank, task in tasks.items() if not task or task.type != "chief"
        }
        return others or set(failed)

    def _judge_failed_worker(self, rank: int, code: int) -> Decision:
        """Start a worker again, or do without it as long as there is another."""
        if self._restarts_used < self._restarts:
            self._restarts_used += 1
            what = f"it is started again ({self._restarts_used} of {self._restarts})"
            return self._decide(Action.START_AGAIN, rank, code, what)
        self._workers.discard(rank)
        if not self._workers:
            return Decision(Action.FAIL)
        used = f"{self._restarts_used} of {self._restarts} restarts are used"
        what = f"it is not started again ({used}), and the run goes on without it"
        return self._decide(Action.GO_ON, rank, code, what)

    def _decide(self, action: Action, rank: int, code: int, what: str) -> Decision:
        """Return a decision with its notice."""
        how = how_it_ended(code) + (f" (signal {-code})" if code < 0 else "")
        return Decision(action, f"{name_of(rank, self._tasks[rank])} {how}; {what}.")
