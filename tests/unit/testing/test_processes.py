"""How a cluster is started, and what becomes of its end; the launcher is a double."""

import pickle
import sys

import pytest

from tfdist.launch import Exit, RunResult
from tfdist.testing import ClusterError, child, cluster, processes


def train(first, second):
    """Stand at the top of a module, as users' functions must."""


class FakeLauncher:
    """Remembers what it is asked to run, and leaves what the ranks would."""

    def __init__(self):
        self.result = RunResult((Exit(0, 0, 1.0), Exit(1, 0, 1.0)))
        self.left = {}
        self.job = None

    def __call__(self, specs, *, output, timeout_seconds):
        self.specs, self.output, self.timeout_seconds = specs, output, timeout_seconds
        job = output.directory / child.JOB_FILE
        if job.exists():
            with open(job, "rb") as file:
                self.job = (*pickle.load(file), pickle.load(file))
        for rank, content in self.left.items():
            child.result_file(output.directory, rank).write_bytes(pickle.dumps(content))
        for exit_ in self.result.exits:
            (output.directory / f"rank.{exit_.rank}.log").write_bytes(b"log\xff\n")
        return self.result


@pytest.fixture(autouse=True)
def launcher(monkeypatch):
    launcher = FakeLauncher()
    monkeypatch.setattr(processes, "run", launcher)
    return launcher


def test_a_function_is_handed_over_by_its_file(launcher):
    cluster(train, args=(1, "two"), timeout_seconds=5, env={"A": "1"})

    path, reference, args = launcher.job
    assert path == sys.path
    assert reference == (__name__, __file__, "train")
    assert args == (1, "two")
    assert launcher.timeout_seconds == 5
    assert [spec.env["A"] for spec in launcher.specs] == ["1", "1"]
    assert launcher.specs[0].argv[:3] == (sys.executable, "-P", child.__file__)
    assert launcher.output.console is False


def test_the_collective_reaches_the_job(launcher):
    cluster(train, collective="horovod")
    assert launcher.specs[1].env["HOROVOD_RANK"] == "1"

    cluster(train)
    assert "HOROVOD_RANK" not in launcher.specs[1].env


def test_a_script_gets_its_arguments_as_text(launcher, tmp_path):
    script = tmp_path / "train.py"
    script.touch()

    cluster(script, size=3, args=["--epochs", 1, tmp_path])

    arguments = ("--epochs", "1", str(tmp_path))
    assert launcher.specs[2].argv == (sys.executable, str(script), *arguments)
    assert launcher.job is None


def test_values_and_logs_are_by_rank(launcher):
    launcher.left = {0: ("zero", None), 1: ([1], None)}

    result = cluster(train)

    assert result.values == ("zero", [1])
    assert result.logs == ("log\ufffd\n", "log\ufffd\n")
    assert result.exit_codes == (0, 0)
    assert result.errors == (None, None)
    assert (result.failed_rank, result.problem) == (None, "")


def test_the_folder_is_gone_afterwards(launcher):
    cluster(train)

    assert not launcher.output.directory.exists()


def failed(launcher):
    exits = (Exit(0, -15, 2.0), Exit(1, 1, 1.0))
    launcher.result = RunResult(exits, "failed", failed_rank=1, ended_ranks=(0,))
    launcher.left = {1: (None, ("ValueError", "bad", "Traceback ..."))}


def test_an_exception_is_raised_here(launcher):
    failed(launcher)

    with pytest.raises(
        ClusterError, match="rank 1 of 2 raised ValueError: bad"
    ) as info:
        cluster(train)

    assert info.value.result.exit_codes == (-15, 1)
    assert info.value.result.errors[1].traceback == "Traceback ..."


def test_unless_nobody_wants_that(launcher):
    failed(launcher)

    result = cluster(train, check=False)

    assert (result.failed_rank, result.errors[1].type) == (1, "ValueError")
    assert result.values == (None, None)


def test_a_timeout_is_raised_here(launcher):
    exits = (Exit(0, 0, 1.0), Exit(1, -15, 9.0))
    launcher.result = RunResult(exits, "timeout", "9", ended_ranks=(1,))

    with pytest.raises(ClusterError, match="did not end within 9 s; rank 1 was still"):
        cluster(train)


def test_a_missing_script():
    with pytest.raises(FileNotFoundError, match="The script to run does not exist"):
        cluster("missing.py")


def test_what_is_no_target():
    with pytest.raises(TypeError, match="a function or the path of a script"):
        cluster(3)
