"""The failure policy of a job: which failures end it, and which processes restart."""

from collections.abc import Collection, Mapping
from enum import Enum

from tfdist.cluster import Task
from tfdist.launch.job import name_of
from tfdist.launch.result import how_it_ended


class Action(Enum):
    """A reaction to the exit of a process."""

    GO_ON = "go on"
    START_AGAIN = "start it again"
    FINISH = "let the others end, as the job is done"
    FAIL = "end the others, as the job has failed"


# A reaction to the exit of a process, and a notice for the user or nothing.
Decision = tuple[Action, str]


class Policy:
    """Decisions on what the exit of each process means for the job."""

    # Without parameter servers any failure fails the job. With them, the job ends with
    # its chief. A worker has no state, so it restarts; a server holds variables, so its
    # failure fails the job; an evaluator's exit never matters.
    def __init__(self, tasks: Mapping[int, Task | None], *, restarts: int) -> None:
        self._tasks = dict(tasks)
        self._restarts = restarts
        self._restarts_used = 0
        self.is_done = False
        self._workers = {
            rank for rank, task in tasks.items() if task and task.type == "worker"
        }

    def judge(self, rank: int, code: int) -> Decision:
        """Decide what the exit of a process means; call it once per exit."""
        task = self._tasks[rank]
        if task is None:
            return (Action.GO_ON if code == 0 else Action.FAIL), ""
        if task.type == "chief" and code == 0:
            self.is_done = True
            return Action.FINISH, ""
        if self.is_done:
            return Action.GO_ON, ""
        if task.type == "worker" and code != 0:
            return self._judge_failed_worker(rank, code)
        self._workers.discard(rank)
        if code != 0 and task.type != "evaluator":
            return Action.FAIL, ""
        what = "it is not started again, and the chief goes on without it"
        return self._decide(Action.GO_ON, rank, code, what)

    def suspects(self, failed: Collection[int]) -> set[int]:
        """Return the failed ranks that may have caused the others to fail."""
        # A chief fails soon after a server or its last worker, and may be reported
        # first. Workers and servers do not fail because of the chief.
        tasks = {rank: self._tasks[rank] for rank in failed}
        others = {
            rank for rank, task in tasks.items() if not task or task.type != "chief"
        }
        return others or set(failed)

    def _judge_failed_worker(self, rank: int, code: int) -> Decision:
        """Restart a worker, or go on without it while others are left."""
        if self._restarts_used < self._restarts:
            self._restarts_used += 1
            what = f"it is started again ({self._restarts_used} of {self._restarts})"
            return self._decide(Action.START_AGAIN, rank, code, what)
        self._workers.discard(rank)
        if not self._workers:
            return Action.FAIL, ""
        used = f"{self._restarts_used} of {self._restarts} restarts are used"
        what = f"it is not started again ({used}), and the run goes on without it"
        return self._decide(Action.GO_ON, rank, code, what)

    def _decide(self, action: Action, rank: int, code: int, what: str) -> Decision:
        """Return a decision with its notice."""
        how = how_it_ended(code) + (f" (signal {-code})" if code < 0 else "")
        return action, f"{name_of(rank, self._tasks[rank])} {how}; {what}."
