"""What `tfdist run` says of failures and restarts."""

import pytest

from tfdist.cluster import Task
from tfdist.launch import Attempt, Exit, Restarts, RunResult
from tfdist_cli.run_report import report_end, report_restart

DONE = RunResult((Exit(0, 0, 1.0),))
FAILED = RunResult((Exit(0, 3, 1.0, ("one", "two")),), "failed", failed_rank=0)


@pytest.fixture
def said(capsys):
    """Return a function that reports the end of a job of one start."""

    def report_one(*results):
        report_end(Restarts(2), [Attempt(result, (0,)) for result in results])
        return capsys.readouterr().err.splitlines()

    return report_one


def test_nothing_is_said_when_all_is_well(said):
    assert said(DONE) == []


def test_a_failure_is_told_with_the_last_lines(said):
    tail = ("one", "x" * 1000)
    exits = (Exit(0, -15, 2.0), Exit(1, 3, 1.0, tail))

    assert said(RunResult(exits, "failed", failed_rank=1, ended_ranks=(0,))) == [
        "tfdist run: the last lines of rank 1:",
        "    one",
        "    " + "x" * 300,
        "tfdist run: rank 1 failed with exit code 3 after 1.0 s; "
        "rank 0 was still running and was ended.",
    ]


def test_a_task_is_told_by_its_name(said):
    exits = (Exit(0, 1, 1.0, ("no",), task=Task("chief", 0)),)

    assert said(RunResult(exits, "failed", failed_rank=0)) == [
        "tfdist run: the last lines of chief:",
        "    no",
        "tfdist run: chief failed with exit code 1 after 1.0 s.",
    ]


def test_a_silent_failure_is_told_in_one_line(said):
    assert said(RunResult((Exit(0, 3, 1.0),), "failed", failed_rank=0)) == [
        "tfdist run: rank 0 failed with exit code 3 after 1.0 s."
    ]


def test_a_timeout_is_told_in_one_line(said):
    exits = (Exit(0, -15, 2.0, ("text",)),)

    assert said(RunResult(exits, "timeout", "2", ended_ranks=(0,))) == [
        "tfdist run: the run did not end within 2 s; "
        "rank 0 was still running and was ended."
    ]


def test_a_restart_is_told_with_the_last_lines(capsys):
    report_restart(FAILED, "restart 1 of 2: rank 0 failed.")

    assert capsys.readouterr().err.splitlines() == [
        "tfdist run: the last lines of rank 0:",
        "    one",
        "    two",
        "tfdist run: restart 1 of 2: rank 0 failed.",
    ]


def test_restarts_are_told_in_the_end(said):
    first, total = said(FAILED, DONE)

    assert first.startswith("tfdist run: restart 1: rank 0 failed with exit code 3")
    assert total.startswith("tfdist run: 1 of 2 restarts used; how many steps")


def test_the_last_line_says_why_the_job_has_failed(said):
    lines = said(FAILED, FAILED, FAILED)

    assert lines[2].startswith("tfdist run: 2 of 2 restarts used")
    assert lines[3] == "tfdist run: the last lines of rank 0:"
    assert lines[-1] == "tfdist run: rank 0 failed with exit code 3 after 1.0 s."
