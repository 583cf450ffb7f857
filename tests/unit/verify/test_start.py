"""Which processes are started, and what is said when they fail; none is started."""

import json
from pathlib import Path

import pytest

from tfdist.launching.result import Exit, RunResult
from tfdist.verify import Orders, VerifyError, start, verify

ORDERS = Orders(("train.py",), size=2, steps=2)


class FakeLauncher:
    """Leaves the recordings that it is given, and ends as it is told."""

    def __init__(self, *recordings):
        self.recordings = list(recordings)
        self.result = None
        self.calls = []

    def __call__(self, specs, **options):
        self.calls.append((specs, options))
        if self.result is not None:
            return self.result
        given = json.loads(specs[0].argv[3])
        assert (given["command"], given["steps"]) == (["train.py"], 2)
        folder = Path(given["folder"])
        for recording in self.recordings.pop(0):
            recording.write(folder)
        return RunResult(tuple(Exit(spec.rank, 0, 1.0) for spec in specs))


@pytest.fixture
def launcher(runs, monkeypatch):
    one, many = runs
    launcher = FakeLauncher([one], many)
    monkeypatch.setattr(start, "run", launcher)
    return launcher


def test_the_one_process_sees_what_rank_0_sees(launcher):
    assert verify(ORDERS).passed

    (one,), (first, second) = (specs for specs, _ in launcher.calls)
    for name in ("TF_CONFIG", "TFDIST_RANK", "TFDIST_SIZE", "TFDIST_RUN_ID"):
        assert one.env[name] == first.env[name]
    assert len(json.loads(one.env["TF_CONFIG"])["cluster"]["worker"]) == 2
    assert one.cores == ()
    assert [json.loads(each.argv[3])["lone"] for each in (one, first)] == [True, False]
    assert first.argv == second.argv


def test_nothing_is_printed_and_logs_are_left_where_they_are_wanted(launcher, tmp_path):
    verify(ORDERS, output_directory=tmp_path / "logs", timeout_seconds=60)

    options = [options for _, options in launcher.calls]
    assert [o["output"].console for o in options] == [False, False]
    assert [o["output"].directory.name for o in options] == ["one", "all"]
    assert all((tmp_path / "logs" / name).is_dir() for name in ("one", "all"))
    assert all(0 < o["timeout_seconds"] <= 60 for o in options)


def test_a_script_that_fails(launcher):
    exits = (Exit(0, 1, 2.0, ("ValueError: no",)),)
    launcher.result = RunResult(exits, "failed", failed_rank=0)

    with pytest.raises(VerifyError, match="With one process the script does") as error:
        verify(ORDERS)

    assert str(error.value).endswith("after 2.0 s. Last lines:\n    ValueError: no")
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("exit", "reason", "detail", "message", "code"),
    [
        (Exit(0, -15, 2.0), "timeout", "2", "the run did not end within 2 s", 2),
        (Exit(0, -2, 2.0), "signal", "SIGINT", "SIGINT ended the run", 130),
    ],
)
def test_a_run_that_is_ended(launcher, exit, reason, detail, message, code):
    launcher.result = RunResult((exit,), reason, detail, ended_ranks=(0,))

    with pytest.raises(VerifyError, match=message) as error:
        verify(ORDERS)

    assert error.value.exit_code == code


def test_a_script_that_does_not_train(launcher):
    launcher.recordings[0][0].batches = []

    with pytest.raises(
        VerifyError,
        match="The script must train under a strategy of tfdist. Received: no step "
        "under one in one process. Make the strategy with",
    ):
        verify(ORDERS)


def test_numbers_that_verify_nothing_are_refused():
    with pytest.raises(
        ValueError, match=r"size \(-np\) must be at least 2. Received: size=1. Verif"
    ):
        Orders(("a.py",), size=1)
    with pytest.raises(
        ValueError, match=r"steps must be at least 1. Received: steps=0. Leave it out"
    ):
        Orders(("a.py",), steps=0)
    with pytest.raises(ValueError, match="timeout_seconds must be positive. Received"):
        verify(ORDERS, timeout_seconds=0)


@pytest.mark.parametrize(
    "line", ["hvd.DistributedOptimizer(optimizer)", "DistributedGradientTape(tape)"]
)
def test_a_horovod_script_is_refused_before_it_runs(launcher, tmp_path, line):
    script = tmp_path / "train.py"
    script.write_text(f"# DistributedOptimizer\n{line}\n")

    with pytest.raises(
        VerifyError,
        match=r"^tfdist verify does not take Horovod scripts: .* Received: Distributed"
        r"\w+ in .*train\.py\. Train with the plain optimizer under tfdist\.strateg",
    ) as caught:
        verify(Orders((str(script),)))

    assert caught.value.exit_code == 2
    assert launcher.calls == []


@pytest.mark.parametrize("text", ["# hvd.DistributedOptimizer\nx = 1\n", "def :\n"])
def test_other_scripts_are_run(launcher, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(text)

    assert verify(ORDERS).passed
