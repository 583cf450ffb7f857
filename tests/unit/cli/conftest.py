"""Calls of the command in this process, in an empty folder."""

import pytest

from tfdist_cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Be in an empty folder, and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def printed(capsys):
    """Return a function that calls the command, and returns what it prints."""

    def call(*words):
        assert main(words) == 0
        return capsys.readouterr().out

    return call


@pytest.fixture
def refusal(capsys):
    """Return a function that calls the command, and returns the error it ends with."""

    def call(*words):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        out, error = capsys.readouterr()
        assert out == ""
        return error

    return call


@pytest.fixture
def make_program(tmp_path):
    """Return a function that writes a shell script, and returns its path."""

    def make(name, script=""):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program

    return make


@pytest.fixture
def installed_horovod(tmp_path, monkeypatch):
    """Write the files of an installed Horovod, and return the folder of its package.

    It has no library for TensorFlow, and comes before one that is really there. There
    is a pip, too.
    """
    info = tmp_path / "horovod-0.28.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: horovod\nVersion: 0.28.1\n")
    for package in ("horovod", "pip"):
        (tmp_path / package).mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "horovod"
