"""Programs that are started, and mistakes that are found before."""

import os
import sys

import pytest

from tfdist.launch.job import resolve_command


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Be in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_python_file_runs_with_this_interpreter(folder):
    (folder / "train.py").touch()

    command = resolve_command(["train.py", "--epochs", "3"])

    assert command == (sys.executable, "train.py", "--epochs", "3")


def test_a_module_runs_as_with_python_m(folder):
    (folder / "package").mkdir()

    command = resolve_command(["package.train", "-m"], module=True)

    assert command == (sys.executable, "-m", "package.train", "-m")


def test_a_program_is_looked_up_on_path():
    program, *arguments = resolve_command(["sh", "-c", "exit"])

    assert os.path.isabs(program)
    assert arguments == ["-c", "exit"]


@pytest.mark.parametrize("name", ["nosuchpackage.train", "", ".train"])
def test_a_missing_module(name):
    with pytest.raises(FileNotFoundError, match=rf"Received: -m {name}\. Install the"):
        resolve_command([name], module=True)


def test_a_file_that_is_not_executable(folder):
    (folder / "run.sh").touch(mode=0o755)
    assert resolve_command(["./run.sh"]) == ("./run.sh",)
    (folder / "run.sh").chmod(0o644)

    with pytest.raises(FileNotFoundError, match=r"not executable. .*\./run\.sh\."):
        resolve_command(["./run.sh"])
