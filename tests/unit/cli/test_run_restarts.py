"""`tfdist run --max-restarts`: what it reads and refuses; the launcher is a double."""

import pytest

from tfdist.launch import Attempt, Exit, Restarts, RunResult
from tfdist_cli import run as run_module
from tfdist_cli.main import main
from tfdist_cli.run_restarts import remarks


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


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            "-np 2 --max-restarts -1",
            "max_restarts (--max-restarts) must not be negative. Received: "
            "max_restarts=-1. Use 0",
        ),
        (
            "-np 2 --min-np 1",
            "min_size (--min-np) has no effect without restarts. Received: min_size=1, "
            "max_restarts=0. Give",
        ),
        (
            "-np 2 --max-restarts 1 --min-np 3",
            "at least 1 and at most size (-np). Received: min_size=3, size=2. Leave",
        ),
        ("-np 2 --max-restarts 1 --min-np 0", "Received: min_size=0, size=2. Leave"),
        (
            "--workers 2 --ps 1 --max-restarts 1 --min-np 1",
            "is for ranks that are all alike. Received: min_size=1, workers=2, ps=1. "
            "Leave",
        ),
        ("-np 2 --max-restarts x", "argument --max-restarts: invalid int value: 'x'"),
    ],
)
@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_what_is_refused_before_anything_starts(asked, options, error, dry_run, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["run", *options.split(), *dry_run, "train.py"])

    assert error in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize(
    ("restarts", "lines"),
    [
        (Restarts(), []),
        (Restarts(2), ["# after a failure: all of them again, up to 2 times"]),
        (
            Restarts(2, min_size=3),
            [
                "# after a failure: all of them again, up to 2 times, "
                "with -np 3 at least"
            ],
        ),
    ],
)
def test_remarks_of_a_dry_run(restarts, lines):
    assert remarks(restarts) == lines


def test_a_dry_run_says_what_its_lines_cannot(asked, capsys):
    line = "-np 2 --max-restarts 3 --min-np 1 --dry-run train.py"

    assert main(["run", *line.split()]) == 0

    remark, *processes = capsys.readouterr().out.splitlines()
    assert remark.startswith("# after a failure: all of them again, up to 3 times")
    assert [f"TFDIST_SLOT={slot} " in processes[slot] for slot in (0, 1)] == [True] * 2
    assert asked == []
