"""The policy of a job: which failures it survives, and what it starts again."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from tfdist.cluster import Task
from tfdist.launch.job import name_of
from tfdist.launch.result import how_it_ended


class Action(Enum):
    """The reaction to the end of a process."""

    GO_ON = "go on"
    START_AGAIN = "start it again"
    FINISH = "let the others end, as the job is done"
    FAIL = "end the others, as the job has failed"


@dataclass(frozen=True)
class Decision:
    """The reaction to the end of a process, and a line for the user, if any."""

    action: Action
    notice: str = ""


class Policy:
    """Decides what the end of a process means for the job.

    Ranks are all alike: each failure is the job's, and the job is done when the last
    has ended. With parameter servers the job is what the chief does. A worker has no
    state, so it is started again; a server holds variables, and the job fails with
    it. An evaluator never decides. `tasks` is None for ranks that are all alike.
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
        """Decide what the end of a process means; call it once for each end."""
        task = self._tasks[rank]
        if task is None:
            return Decision(Action.GO_ON if code == 0 else Action.FAIL)
        if task.type == "chief" and code == 0:
            self.is_done = True
            return Decision(Action.FINISH)
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
        """Return the ranks that can be the cause of the other failures.

        A chief fails within moments without a server or its last worker, and may seem
        to have been first. They do not fail without the chief.
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
