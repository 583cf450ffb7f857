"""Exit codes and sentences."""

import pytest

from tfdist.cluster import Task
from tfdist.launching.result import Exit, RunResult

TWO = (Exit(0, -15, 3.04), Exit(1, 7, 2.0))
SIX = tuple(Exit(rank, -2, 1.0) for rank in range(6))
TASKS = (
    Exit(0, -15, 3.0, task=Task("chief", 0)),
    Exit(1, -15, 3.0, task=Task("worker", 0)),
    Exit(2, -15, 3.0, task=Task("worker", 1)),
    Exit(3, -9, 2.0, task=Task("ps", 0)),
)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "rank 2 ended well after 1.5 s"),
        (3, "rank 2 failed with exit code 3 after 1.5 s"),
        (143, "rank 2 was asked to stop, and ended with exit code 143 after 1.5 s"),
        (-15, "rank 2 was killed by SIGTERM after 1.5 s"),
        (-40, "rank 2 was killed by signal 40 after 1.5 s"),
    ],
)
def test_how_a_rank_ended(code, words):
    assert Exit(2, code, 1.52).describe() == words


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (RunResult(TWO), 0),
        (RunResult(TWO, "failed", failed_rank=1), 7),
        (RunResult(TWO, "failed", failed_rank=0), 143),
        (RunResult(TWO, "timeout", "5"), 124),
        (RunResult(TWO, "signal", "SIGINT"), 130),
        (RunResult(TWO, "signal", "SIGTERM"), 143),
        (RunResult(TWO, "output", "Broken pipe"), 141),
    ],
)
def test_exit_code(result, code):
    assert result.exit_code == code


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (RunResult(TWO), ""),
        (
            RunResult(TWO, "failed", failed_rank=1, ended_ranks=(0,)),
            "rank 1 failed with exit code 7 after 2.0 s; "
            "rank 0 was still running and was ended.",
        ),
        (
            RunResult(SIX, "signal", "SIGINT", ended_ranks=(0, 2, 5)),
            "SIGINT ended the run; ranks 0, 2 and 5 were still running and were ended.",
        ),
        (
            RunResult(TASKS, "failed", failed_rank=3, ended_ranks=(0, 1, 2)),
            "ps 0 was killed by SIGKILL (possibly by the kernel: out of memory) "
            "after 2.0 s; "
            "chief, worker 0 and worker 1 were still running and were ended.",
        ),
        (
            RunResult(TASKS, "timeout", "9", ended_ranks=(2,)),
            "the run did not end within 9 s; worker 1 was still running and was ended.",
        ),
        (
            RunResult(TWO, "output", "No space left"),
            "the output of the ranks could not be written: No space left.",
        ),
    ],
)
def test_headline(result, line):
    assert result.headline() == line
