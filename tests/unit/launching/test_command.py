"""Programs that are started, and mistakes that are found before."""

import pytest

from tfdist.launching.job import resolve_command


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Be in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
