"""What is made of the answer of another Python; a script stands in for it here."""

import sys

import pytest

from tfdist_cli.env_devices import device_facts


@pytest.fixture
def answering(tmp_path, monkeypatch):
    """Return what makes a script the interpreter."""

    def make(script):
        command = tmp_path / "python"
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(command))

    return make


def test_what_tensorflow_says(answering):
    answering('echo noise; echo "tfdist-devices {\\"physical_devices\\": [\\"$X\\"]}"')

    assert device_facts({"X": "CPU"}) == {"physical_devices": ["CPU"]}


def test_a_tensorflow_that_does_not_load(answering):
    answering("for i in 1 2 3 4 5 6; do echo line $i >&2; done; exit 3")

    assert device_facts({}) == {
        "failed": ["exit code 3", "line 2", "line 3", "line 4", "line 5", "line 6"]
    }


def test_a_tensorflow_that_hangs(answering):
    answering("exec /bin/sleep 60")

    assert device_facts({}, timeout_seconds=0.1) == {
        "failed": "TensorFlow has not answered in 0.1 s"
    }
