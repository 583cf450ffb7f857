"""Restarts and the final report of `tfdist run`; the launcher is a double."""

import pytest

from tfdist.launch import Attempt, Exit, Restarts, RunResult
from tfdist_cli import run as run_module
from tfdist_cli.main import main
from tfdist_cli.run import report_end, report_restart


@pytest.fixture(autouse=True)
def asked(tmp_path, monkeypatch):
    """Be in a folder with a script; return what the launcher is asked for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    asked = []

    def run_job(job, restarts, **options):
        asked.append(restarts)
        return (Attempt(RunResult((Exit(0, 0, 1.0),)), (0,)),)

    monkeypatch.setattr(run_module, "run_job", run_job)
    return asked


@pytest.mark.parametrize(
    ("options", "restarts"),
    [
        ("-np 3", Restarts()),
        ("-np 3 --max-restarts 5", Restarts(5)),
        ("-np 3 --max-restarts 5 --min-np 2", Restarts(5, min_size=2)),
        ("-np 3 --max-restarts 1 --collective horovod --min-np 3", Restarts(1, 3)),
        ("--workers 2 --ps 1 --restarts 1 --max-restarts 2", Restarts(2)),
    ],
)
def test_the_options_arrive(asked, options, restarts):
    main(["run", *options.split(), "train.py"])

    assert asked == [restarts]


def test_a_dry_run_says_what_its_lines_cannot(asked, capsys):
    line = "-np 2 --max-restarts 3 --min-np 1 --dry-run train.py"

    assert main(["run", *line.split()]) == 0

    remark, *processes = capsys.readouterr().out.splitlines()
    assert remark == (
        "# after a failure: all of them again, up to 3 times, with -np 1 at least"
    )
    assert [f"TFDIST_SLOT={slot} " in processes[slot] for slot in (0, 1)] == [True] * 2
    assert asked == []


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
    assert total.startswith("tfdist run: 1 of 2 restarts used.")
