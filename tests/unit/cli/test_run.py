"""Arguments, errors and dry runs of `tfdist run`; the launcher is a double."""

import shlex
import sys
from pathlib import Path

import pytest

from tfdist.launch import (
    Attempt,
    Exit,
    Limits,
    Output,
    Restarts,
    RunResult,
    plan_here,
)
from tfdist_cli import run as run_module
from tfdist_cli.main import main
from tfdist_cli.run import report_restart

DONE = RunResult((Exit(0, 0, 1.0),))
OPTIONS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


class FakeLauncher:
    """Remembers what it is asked to run, and says that it ended as told."""

    def __init__(self, result):
        self.result = result
        self.specs = self.restarts = self.options = None

    def __call__(self, job, restarts, **options):
        self.specs, self.restarts = plan_here(job), restarts
        self.options = options
        return (Attempt(self.result, tuple(range(len(self.specs)))),)

    @property
    def command(self):
        return self.specs[0].argv


@pytest.fixture(autouse=True)
def launcher(tmp_path, monkeypatch):
    """Be in a folder with a script, and start nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    launcher = FakeLauncher(DONE)
    monkeypatch.setattr(run_module, "run_job", launcher)
    return launcher


def test_the_shortest_call(launcher):
    assert main(["run", "-np", "2", "train.py"]) == 0

    assert [spec.rank for spec in launcher.specs] == [0, 1]
    assert launcher.command == (sys.executable, "train.py")
    assert launcher.options == {
        "output": Output(console=True, tag=True, directory=None),
        "limits": Limits(timeout_seconds=None, worker_restarts=3),
        "hosts": None,
        "on_restart": report_restart,
    }
    assert launcher.restarts == Restarts(0)


def test_every_option_arrives(launcher, monkeypatch):
    monkeypatch.setattr("tfdist.launch.plan.available_cores", lambda: (0, 1, 2, 3))
    line = "-np 2 --output-dir a/b --no-tag-output --timeout 1.5 --bind-to core "
    line += "--threads-per-process 3 --env A=1 --env B=x=y --env C= train.py"

    main(["run", *line.split()])

    assert launcher.options["output"] == Output(tag=False, directory=Path("a/b"))
    assert Path("a/b").is_dir()
    assert launcher.options["limits"] == Limits(timeout_seconds=1.5)
    spec = launcher.specs[1]
    assert spec.cores == (2, 3)
    assert [spec.env[name] for name in OPTIONS] == ["3", "3", "3"]
    assert [spec.env[name] for name in "ABC"] == ["1", "x=y", ""]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--epochs", "3"],
        ["-np", "7", "--timeout", "1", "--dry-run"],
        ["--", "-x", "--"],
        ["-m", "--help"],
        ["-h"],
        ["a b", "", "*"],
    ],
)
def test_all_after_the_command_belongs_to_it(launcher, arguments):
    main(["run", "-np", "2", "train.py", *arguments])

    assert launcher.command == (sys.executable, "train.py", *arguments)
    assert len(launcher.specs) == 2


def test_two_dashes_may_stand_before_the_command(launcher):
    main(["run", "-np", "2", "--", "train.py", "--", "x"])

    assert launcher.command == (sys.executable, "train.py", "--", "x")


def test_a_module(launcher):
    main(["run", "-np", "2", "-m", "json.tool", "-m", "--sort-keys"])

    assert launcher.command == (sys.executable, "-m", "json.tool", "-m", "--sort-keys")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("train.py", "-np is missing: give the number"),
        ("--restarts 1 train.py", "-np is missing: give the number of processes"),
        ("-np 2 --", "The command is missing"),
        ("-np 0 train.py", "size (-np) must be at least 1"),
        ("--np 2 train.py", "there is no option --np. Did you mean -np?"),
        ("-np 2 --env A train.py", "Received: A. Write it as A=VALUE"),
        ("-np 2 --output-dir train.py/x train.py", "Received: train.py/x (Not a dir"),
        (
            "-np 2 --restarts 1 train.py",
            "--restarts has no effect on ranks, none of which can be missed. Received: "
            "--restarts 1 without --workers. Leave it out",
        ),
        ("-np 2 --autotune train.py", "Received: --autotune. Add --collective horovod"),
        ("-np 2 --min-np 1 train.py", "Received: min_size=1, max_restarts=0. Give"),
    ],
)
def test_what_is_refused_before_anything_starts(launcher, arguments, error, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["run", *arguments.split()])

    message = capsys.readouterr().err
    assert message.startswith("tfdist run: error: ")
    assert error in message
    assert launcher.specs is None


def test_what_the_launcher_refuses(monkeypatch, capsys):
    monkeypatch.undo()

    with pytest.raises(SystemExit, match="2"):
        main(["run", "-np", "1", "--timeout", "0", "true"])

    assert "Received: timeout_seconds=0.0" in capsys.readouterr().err


def test_a_dry_run_prints_a_line_for_each_process(launcher, capsys):
    assert main(["run", "-np", "2", "--dry-run", "train.py", "a b"]) == 0

    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert [line[-2:] for line in lines] == [["train.py", "a b"]] * 2
    assert [f"TFDIST_RANK={rank}" in lines[rank] for rank in (0, 1)] == [True, True]
    assert launcher.specs is None


def test_a_job_with_parameter_servers(launcher):
    main(["run", "--workers", "2", "--ps", "1", "--restarts", "0", "train.py"])

    assert [spec.tag for spec in launcher.specs] == [
        *("chief", "worker 0", "worker 1"),
        "ps 0",
    ]
    assert launcher.options["limits"].worker_restarts == 0


def test_a_horovod_job(launcher):
    line = "-np 2 --collective horovod --cycle-time-ms 2 --env A=1 train.py"

    main(["run", *line.split()])

    env = launcher.specs[1].env
    assert [env[name] for name in ("HOROVOD_RANK", "HOROVOD_SIZE")] == ["1", "2"]
    assert [env[name] for name in ("HOROVOD_CYCLE_TIME", "A")] == ["2.0", "1"]


def test_a_dry_run_of_a_horovod_job_begins_with_its_rendezvous(launcher, capsys):
    main(["run", "-np", "2", "--collective", "horovod", "--dry-run", "train.py"])

    server, *ranks = capsys.readouterr().out.splitlines()
    assert "tfdist.launch.horovod" in server
    assert [f"HOROVOD_RANK={rank} " in ranks[rank] for rank in (0, 1)] == [True, True]


def test_horovod_must_be_installed(launcher, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "horovod", None)

    with pytest.raises(SystemExit, match="2"):
        main(["run", "-np", "1", "--collective", "horovod", "true"])

    assert capsys.readouterr().err.startswith(
        "tfdist run: error: A Horovod job needs Horovod, which is not installed. "
        "Received: collective='horovod'. Run `tfdist horovod install`."
    )


def test_how_it_ended_is_said_and_returned(launcher, capsys):
    launcher.result = RunResult((Exit(0, 3, 1.0),), "failed", failed_rank=0)

    assert main(["run", "-np", "1", "train.py"]) == 3

    assert capsys.readouterr().err == (
        "tfdist run: rank 0 failed with exit code 3 after 1.0 s.\n"
    )
