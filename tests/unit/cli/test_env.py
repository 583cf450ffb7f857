"""`tfdist env`: the facts about this host and an environment."""

import json
import os
import platform
import re
import socket
import sys

import pytest

import tfdist
from tfdist.horovod_build.installed import Installed, tensorflow_version
from tfdist_cli import env as env_module
from tfdist_cli.main import main

TF_CONFIG = json.dumps(
    {
        "cluster": {"worker": ["a:1", "b:1"]},
        "task": {"type": "worker", "index": 1},
    }
)
SECTIONS = ["versions", "system", "engines", "variables"]


@pytest.fixture
def show(monkeypatch, capsys):
    """Return the function that shows an environment."""

    def show(env, *options):
        monkeypatch.setattr(os, "environ", {"PATH": "", **env})
        assert main(["env", *options]) == 0
        return capsys.readouterr().out

    return show


def test_every_section_is_a_table(show):
    out = show({"TF_CONFIG": TF_CONFIG})

    headers = [block.split()[1] for block in out.split("\n\n") if block[0] == "|"]
    assert headers == [*SECTIONS, "task"]
    assert f"| TF_CONFIG | {TF_CONFIG}" in out
    assert "This is worker 1, rank 1 of 2.\n" in out


def test_json(show):
    env = {"TF_CONFIG": TF_CONFIG, "NCCL_TOKEN": "x", "CUDA_VISIBLE_DEVICES": "-1"}

    facts = json.loads(show(env, "--json"))

    assert [*facts] == [*SECTIONS, "cluster"]
    assert facts["versions"]["tfdist"] == tfdist.__version__
    assert facts["versions"]["Python"] == platform.python_version()
    assert facts["system"]["python"] == sys.executable
    assert facts["system"]["host"] == socket.gethostname()
    assert facts["system"]["cores"].endswith(f" of {os.cpu_count()}")
    assert facts["system"]["gpus"] == "nvidia-smi is not installed"
    assert facts["variables"] == env | {"NCCL_TOKEN": "(hidden)"}
    assert facts["cluster"]["rank"] == 1
    assert facts["cluster"]["variables"] == ["TF_CONFIG"]


def test_a_wrong_cluster_is_reported(show):
    env = {"TF_CONFIG": '{"cluster": {"worker": ["a"]}}'}

    assert "\n\nThe cluster cannot be read: TF_CONFIG " in show(env)
    assert json.loads(show(env, "--json"))["cluster"]["error"].startswith("TF_CONFIG ")


def test_alone_there_are_no_variables(show):
    out = show({})

    assert "| variables" not in out
    assert "This process is alone: rank 0 of 1.\n" in out


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo GPU 0; echo GPU 1", ["GPU 0", "GPU 1"]),
        ("echo no driver >&2; exit 9", "failed with exit code 9: no driver"),
    ],
)
def test_gpus(show, tmp_path, script, expected):
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)

    facts = json.loads(show({"PATH": str(tmp_path)}, "--json"))

    assert facts["system"]["gpus"] == expected


@pytest.fixture
def python(tmp_path, monkeypatch):
    """Return the function that makes a script the interpreter."""

    def python(script):
        command = tmp_path / "python"
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(command))

    return python


def test_the_devices_of_tensorflow(show, python):
    python('echo noise; echo "{\\"logical_devices\\": [\\"CPU:0\\", \\"CPU:1\\"]}"')

    assert "| devices" not in show({})
    out = show({}, "--devices")
    assert "| logical devices | CPU:0 |\n|                 | CPU:1 |" in out


def test_a_tensorflow_that_does_not_load(show, python):
    python("echo no library >&2; exit 3")

    assert json.loads(show({}, "--devices", "--json"))["devices"] == {
        "failed": "failed with exit code 3: no library"
    }


@pytest.mark.parametrize(
    ("built_for", "parts", "said"),
    [
        ("2.21.0", ("Gloo", "MPI"), "built for TensorFlow 2.21.0, with Gloo, MPI"),
        (None, (), "built for TensorFlow unknown, with nothing"),
        ("2.21.0", None, "{} has no library for TensorFlow"),
    ],
)
def test_horovod(show, monkeypatch, tmp_path, built_for, parts, said):
    installed = Installed("0.28.1", tmp_path, built_for)
    monkeypatch.setattr(env_module, "parts_in", lambda folder: parts)
    monkeypatch.setattr(env_module, "find_installed", lambda: installed)

    engines = json.loads(show({}, "--json"))["engines"]
    assert engines["horovod"] == said.format(tmp_path)


def test_why_an_engine_cannot_join_ranks(show, monkeypatch):
    monkeypatch.setattr(env_module, "find_installed", lambda: None)
    monkeypatch.setattr(sys, "prefix", "/nowhere")

    engines = json.loads(show({}, "--json"))["engines"]
    assert engines["tensorflow"] == f"TensorFlow {tensorflow_version()}"
    assert "Received: no mpirun. Run pip install" in engines["mpi"]
    assert engines["horovod"].startswith("not installed; ")


def test_cells(show):
    out = show({"XLA_FLAGS": "a|b\nc", "TF_CPP_LONG": "x" * 301})

    assert r"| a\|b\nc " in out
    assert f"| {'x' * 300} ... |" in out
    assert re.search(r"^\| memory +\| [0-9.]+ GiB", out, re.MULTILINE)
