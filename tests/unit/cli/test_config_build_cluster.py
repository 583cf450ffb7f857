"""`tfdist config build`: who is in the job, from hosts and from a hostfile."""

import io
import sys

import pytest

from tfdist.cluster import Task
from tfdist.cluster.tf_config import loads
from tfdist_cli.main import main


@pytest.fixture
def hostfile(tmp_path, monkeypatch):
    """Return what writes a hostfile in the working directory."""
    monkeypatch.chdir(tmp_path)
    return (tmp_path / "hosts").write_text


def cluster(capsys, options):
    assert main(["config", "build", *options.split()]) == 0
    return loads(capsys.readouterr().out)


@pytest.mark.parametrize("text", ["a slots=2\nb slots=1\n", "a:2\nb", "a\nb\na"])
def test_a_hostfile(capsys, hostfile, text):
    hostfile(text)

    found = cluster(capsys, "--hostfile hosts --port 5000 --index 2")

    assert found.workers == ("a:5000", "a:5001", "b:5000")
    assert found.task == Task("worker", 2)


def test_a_hostfile_from_the_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))

    found = cluster(capsys, "--chief c:1 --hostfile - --task chief --index 0")

    assert found.workers == ("a:2222", "b:2222")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            "--hostfile hosts -H a:1 --index 0",
            "-H and --hostfile both give the workers. "
            "Received: -H a:1 and --hostfile hosts. Leave one",
        ),
        (
            "--hostfile hosts --workers a:1 --index 0",
            "--hostfile and --workers both give the workers. Received: ",
        ),
        (
            "--hostfile hosts --index 0",
            "line 2 of --hostfile hosts must be a host, with slots=N and max_slots=N",
        ),
        (
            "--hostfile none --index 0",
            "--hostfile must be a file that can be read. "
            "Received: none (No such file or directory). Give the name of one that "
            "holds hosts, or -",
        ),
    ],
)
def test_what_is_refused(options, error, capsys, hostfile):
    hostfile("a\nb 2\n")
    with pytest.raises(SystemExit, match="2"):
        main(["config", "build", *options.split()])

    assert capsys.readouterr().err.startswith(f"tfdist config build: error: {error}")
