"""`tfdist env`: the facts about this host and an environment."""

import json
import os
import platform
import re
import socket
import sys
import sysconfig

import pytest

import tfdist
from tfdist_cli.main import main

TF_CONFIG = json.dumps(
    {
        "cluster": {"worker": ["a:1", "b:1"]},
        "task": {"type": "worker", "index": 1},
    }
)
SECTIONS = ["versions", "system", "engines", "variables"]
# What `tfdist env --devices` asks TensorFlow and Keras.
TENSORFLOW = """
from types import SimpleNamespace

print("noise")
__version__ = "2.0"
version = SimpleNamespace(GIT_VERSION="v2")
sysconfig = SimpleNamespace(get_build_info=dict)
config = SimpleNamespace(
    backend=lambda: "tensorflow",
    list_physical_devices=lambda: [],
    list_logical_devices=lambda: [("CPU:0", "CPU"), ("CPU:1", "CPU")],
)
"""


@pytest.fixture
def show(monkeypatch, capsys):
    """Return the function that shows an environment."""

    def show(env, *options):
        with monkeypatch.context() as patch:
            for name in os.environ:
                patch.delenv(name)
            for name, value in {"PATH": "", **env}.items():
                patch.setenv(name, value)
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
    tensorflow = facts["versions"]["tensorflow"]
    assert facts["engines"]["tensorflow"] == f"TensorFlow {tensorflow}"
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
    assert "| devices" not in out
    assert "This process is alone: rank 0 of 1.\n" in out


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo GPU 0; echo GPU 1", ["GPU 0", "GPU 1"]),
        ("echo no driver >&2; exit 9", "failed with exit code 9: no driver"),
    ],
)
def test_gpus(show, make_program, script, expected):
    path = str(make_program("nvidia-smi", script).parent)

    assert json.loads(show({"PATH": path}, "--json"))["system"]["gpus"] == expected


@pytest.fixture
def tensorflow(tmp_path):
    """Return the function that writes TensorFlow and Keras, and gives their path."""

    def tensorflow(code):
        for name in ("tensorflow", "keras"):
            (tmp_path / f"{name}.py").write_text(code)
        return {"PYTHONPATH": str(tmp_path)}

    return tensorflow


def test_the_devices_of_tensorflow(show, tensorflow):
    out = show(tensorflow(TENSORFLOW), "--devices")

    assert re.search(r"\| logical devices +\| CPU:0 CPU +\|\n\| +\| CPU:1 CPU ", out)


def test_a_tensorflow_that_does_not_load(show, tensorflow):
    env = tensorflow("raise SystemExit('no library')")

    assert json.loads(show(env, "--devices", "--json"))["devices"] == {
        "failed": "failed with exit code 1: no library"
    }


@pytest.mark.parametrize(
    ("note", "library", "said"),
    [
        (
            '{"tensorflow": "2.9"}',
            "GlooController",
            "built for TensorFlow 2.9, with Gloo",
        ),
        ("{}", "nothing", "built for TensorFlow unknown, with nothing"),
        ("{}", "", "{} has no library for TensorFlow"),
    ],
)
def test_horovod(show, installed_horovod, note, library, said):
    (installed_horovod / "metadata.json").write_text(note)
    (installed_horovod / "tensorflow").mkdir()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    (installed_horovod / f"tensorflow/mpi_lib{suffix}").write_text(library)

    engines = json.loads(show({}, "--json"))["engines"]
    assert engines["horovod"] == said.format(installed_horovod)


def test_why_an_engine_cannot_join_ranks(show, monkeypatch):
    path = [folder for folder in sys.path if not folder.endswith("-packages")]
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.setitem(sys.modules, "mpi4py", None)

    engines = json.loads(show({}, "--json"))["engines"]
    assert engines["tensorflow"] == "TensorFlow is not installed"
    assert "Received: no mpi4py" in engines["mpi"]
    assert engines["horovod"].startswith("not installed; ")


def test_cells(show):
    out = show({"XLA_FLAGS": "a|b\nc", "TF_CPP_LONG": "x" * 301})

    assert r"| a\|b\nc " in out
    assert f"| {'x' * 300} ... |" in out
    assert re.search(r"^\| memory +\| [0-9.]+ GiB", out, re.MULTILINE)
