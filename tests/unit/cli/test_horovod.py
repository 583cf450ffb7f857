"""`tfdist horovod`: what it reads and prints; nothing is built."""

import os
from pathlib import Path

import pytest

from tfdist.horovod_build import BuildError
from tfdist_cli import horovod
from tfdist_cli.main import main


class FakeInstall:
    """Remembers what it is asked for, and answers as told."""

    def __init__(self):
        self.error = None
        self.calls = []

    def __call__(self, env, *, log, stream, force):
        self.calls.append((env, log, force))
        if self.error is not None:
            raise self.error


@pytest.fixture
def install(monkeypatch):
    fake = FakeInstall()
    monkeypatch.setattr(horovod, "install", fake)
    return fake


def test_the_options_arrive(install, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")

    assert main(["horovod", "install"]) == 0
    assert main(["horovod", "install", "--force", "--log", "my.log"]) == 0

    log = Path("/caches/tfdist/horovod-install.log")
    assert install.calls == [
        (dict(os.environ), log, False),
        (dict(os.environ), Path("my.log"), True),
    ]


def test_a_build_that_fails(install, capsys):
    install.error = BuildError("A compiler must be installed.", 2)

    assert main(["horovod", "install"]) == 2
    message = "tfdist horovod install: A compiler must be installed.\n"
    assert capsys.readouterr().err == message


def test_a_build_that_is_interrupted(install, capsys):
    install.error = KeyboardInterrupt()

    assert main(["horovod", "install"]) == 130
    assert capsys.readouterr().err == "tfdist horovod install: interrupted\n"


def test_a_horovod_that_cannot_be_used(monkeypatch, capsys):
    def check(env, *, stream):
        print("Horovod 0.28.1", file=stream)
        raise BuildError("Run: tfdist horovod install", 2)

    monkeypatch.setattr(horovod, "check", check)

    assert main(["horovod", "check"]) == 1
    message = "tfdist horovod check: Run: tfdist horovod install\n"
    assert capsys.readouterr() == ("Horovod 0.28.1\n", message)


def test_a_check_that_is_interrupted(monkeypatch):
    def interrupt(env, *, stream):
        raise KeyboardInterrupt

    monkeypatch.setattr(horovod, "check", interrupt)
    assert main(["horovod", "check"]) == 130
