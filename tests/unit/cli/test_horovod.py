"""`tfdist horovod`: what it reads and prints; nothing is built."""

import pytest

from tfdist_cli.main import main


@pytest.mark.parametrize(
    ("words", "log"),
    [
        ([], "/dev/null/tfdist/horovod-install.log"),
        (["--force", "--log", "/dev/null/my.log"], "/dev/null/my.log"),
    ],
)
def test_the_options_and_the_environment_arrive(
    words, log, installed_horovod, make_program, monkeypatch, capsys
):
    for name in ("c++", "cc", "make"):
        make_program(name)
    monkeypatch.setenv("PATH", str(installed_horovod.parent))
    monkeypatch.setenv("PIP_BREAK_SYSTEM_PACKAGES", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")

    assert main(["horovod", "install", *words]) == 2
    out, error = capsys.readouterr()
    assert out.startswith("Building again: ") is ("--force" not in words)
    problem = "The log must be a file that can be written."
    assert error.startswith(f"tfdist horovod install: {problem} Received: {log} ")


def test_a_horovod_that_cannot_be_used(installed_horovod, capsys):
    assert main(["horovod", "check"]) == 1

    out, error = capsys.readouterr()
    assert out.startswith(f"Horovod 0.28.1  {installed_horovod}\n")
    assert error.startswith("tfdist horovod check: Horovod must be built with its part")
    assert error.endswith("Run: tfdist horovod install\n")
