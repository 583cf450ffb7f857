"""Programs that are started, and mistakes that are found before."""

import sys

import pytest

from tfdist.launching.job import STRATEGIES, resolve_command, with_strategy
from tfdist.strategies.registry import STRATEGIES as CREATED


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Be in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["nosuchpackage.train", "", ".train"])
def test_a_missing_module(name):
    with pytest.raises(FileNotFoundError, match=rf"Received: -m {name}\. Install the"):
        resolve_command([name], module=True)


def test_no_command():
    # No command of tfdist is named: `tfdist verify` and `estimate` say this, too.
    with pytest.raises(ValueError, match=r"to run\. Put it last: train\.py$"):
        resolve_command([])


def test_a_file_that_is_not_executable(folder):
    (folder / "run.sh").touch(mode=0o755)
    assert resolve_command(["./run.sh"]) == ("./run.sh",)
    (folder / "run.sh").chmod(0o644)

    with pytest.raises(FileNotFoundError, match=r"not executable. .*\./run\.sh\."):
        resolve_command(["./run.sh"])


def test_a_strategy_is_made_for_a_script_or_module(folder):
    (folder / "train.py").touch()
    start = (sys.executable, "-m", "tfdist.default_strategy", "all_reduce")

    script = resolve_command(["train.py", "-x"])
    module = resolve_command(["json.tool", "-x"], module=True)
    assert with_strategy(script, "all_reduce") == (*start, "train.py", "-x")
    assert with_strategy(module, "all_reduce") == (*start, "-m", "json.tool", "-x")


@pytest.mark.parametrize(
    "command", [("/bin/sh", "train.py"), (sys.executable,), (sys.executable, "-c", "1")]
)
def test_no_strategy_is_made_for_another_program(command):
    with pytest.raises(
        ValueError,
        match=r"--strategy is for a Python script or module\. Received: /.*\. Give a "
        r"\.py file, or -m and a module\.",
    ):
        with_strategy(command, "all_reduce")


def test_the_strategies_are_those_of_create():
    assert ("auto", *CREATED) == STRATEGIES
