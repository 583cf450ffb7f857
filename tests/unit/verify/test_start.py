"""Which processes are started, and what is said when they fail; none is started."""

import json
from pathlib import Path

import pytest

from tfdist.launch import Exit, RunResult
from tfdist.verify import Orders, VerifyError, start, verify
from tfdist.verify.start import EXIT_CODE_OF_PLAIN_TRAINING

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
        folder = Path(specs[0].argv[3])
        assert Orders.read(folder / "orders.json") == ORDERS
        for recording in self.recordings.pop(0):
            recording.write(folder)
        return RunResult(tuple(Exit(spec.rank, 0, 1.0) for spec in specs))


@pytest.fixture
def launcher(runs, monkeypatch):
    one, many = runs
    launcher = FakeLauncher([one], many)
    monkeypatch.setattr(start, "run", launcher)
    return launcher


def test_what_is_recorded_is_judged(launcher):
    assert verify(ORDERS).passed

    assert [len(specs) for specs, _ in launcher.calls] == [1, 2]


def test_the_one_process_sees_what_rank_0_sees(launcher):
    verify(ORDERS)

    (one,), (first, second) = (specs for specs, _ in launcher.calls)
    for name in ("TF_CONFIG", "TFDIST_RANK", "TFDIST_SIZE", "TFDIST_RUN_ID"):
        assert one.env[name] == first.env[name]
    assert len(json.loads(one.env["TF_CONFIG"])["cluster"]["worker"]) == 2
    assert one.cores == ()
    assert one.argv[4:] == ("--lone",)
    assert first.argv == second.argv
    assert len(first.argv) == 4


def test_nothing_is_printed_and_logs_are_left_where_they_are_wanted(launcher, tmp_path):
    verify(ORDERS, output_directory=tmp_path / "logs", timeout_seconds=60)

    options = [options for _, options in launcher.calls]
    assert [o["output"].console for o in options] == [False, False]
    assert [o["output"].directory.name for o in options] == ["one", "all"]
    assert all((tmp_path / "logs" / name).is_dir() for name in ("one", "all"))
    assert all(0 < o["timeout_seconds"] <= 60 for o in options)


def test_a_time_that_nothing_fits_in():
    with pytest.raises(
        ValueError, match="timeout_seconds must be positive. Received: "
    ):
        verify(ORDERS, timeout_seconds=0)


def test_a_script_that_fails(launcher):
    exits = (Exit(0, 1, 2.0, ("ValueError: no",)),)
    launcher.result = RunResult(exits, "failed", failed_rank=0)

    with pytest.raises(VerifyError, match="With one process the script does") as error:
        verify(ORDERS)

    assert str(error.value).endswith("after 2.0 s. Last lines:\n    ValueError: no")
    assert error.value.exit_code == 2


def test_a_script_that_takes_too_long(launcher):
    launcher.result = RunResult((Exit(0, -15, 2.0),), "timeout", "2", ended_ranks=(0,))

    with pytest.raises(VerifyError, match="the run did not end within 2 s") as error:
        verify(ORDERS)

    assert error.value.exit_code == 2


def test_ctrl_c_is_told_by_the_exit_code(launcher):
    launcher.result = RunResult((Exit(0, -2, 2.0),), "signal", "SIGINT")

    with pytest.raises(VerifyError, match="SIGINT ended the run") as error:
        verify(ORDERS)

    assert error.value.exit_code == 130


def test_a_script_that_trains_under_no_strategy(launcher):
    tail = ("tfdist verify: the optimizer 'sgd' was applied outside of every strategy",)
    exits = (Exit(0, EXIT_CODE_OF_PLAIN_TRAINING, 2.0, tail),)
    launcher.result = RunResult(exits, "failed", failed_rank=0)

    with pytest.raises(VerifyError, match="must train under a strategy") as error:
        verify(ORDERS)

    assert "Received: the optimizer 'sgd' was applied" in str(error.value)


def test_a_script_that_does_not_train(launcher):
    launcher.recordings[0] = []

    with pytest.raises(VerifyError, match="Received: no step in one process. Make the"):
        verify(ORDERS)


def test_what_is_written_is_read(tmp_path):
    orders = Orders(("a.py", "--b"), size=3, steps=4, module=True, float64=True, seed=7)
    orders.write(tmp_path / "orders")

    assert Orders.read(tmp_path / "orders") == orders


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            {"size": 1},
            r"size \(-np\) must be at least 2. Received: size=1. Verification",
        ),
        ({"steps": 0}, r"steps must be at least 1. Received: steps=0. Leave it out"),
        ({"seed": -1}, r"seed must be from 0 to 2\*\*32 - 1. Received: seed=-1. Leave"),
    ],
)
def test_what_is_refused(arguments, error):
    with pytest.raises(ValueError, match=error):
        Orders(("a.py",), **arguments)
