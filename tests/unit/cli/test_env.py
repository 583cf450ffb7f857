"""`tfdist env`: what it prints of this host and of an environment."""

import json
import os

import pytest

from tfdist_cli import env as env_module
from tfdist_cli import env_devices
from tfdist_cli.main import main

TF_CONFIG = json.dumps(
    {
        "cluster": {"worker": ["a:1", "b:1"]},
        "task": {"type": "worker", "index": 1},
    }
)
SECTIONS = [
    "versions",
    "platform",
    "keras",
    "horovod",
    "cores",
    "memory",
    "limits",
    "gpus",
    "network",
    "variables",
]


@pytest.fixture
def show(monkeypatch, capsys):
    """Return what shows an environment."""
    monkeypatch.setattr(env_module, "network_facts", lambda: {"host_name": "node1"})

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
    assert out.endswith(
        "This is worker 1, rank 1 of 2.\n"
        "Read by the resolver tf_config (TF_CONFIG):\n"
        "  TF_CONFIG  the addresses of all tasks, and which of them this is\n"
    )


def test_a_cluster_of_a_service(show):
    pools = {"workerpool0": ["a:1"], "workerpool1": ["b:1"]}
    spec = {"cluster": pools, "task": {"type": "workerpool1", "index": 0}}
    env = {"CLUSTER_SPEC": json.dumps(spec)}

    facts = json.loads(show(env, "--json"))
    assert facts["cluster"]["launcher"] == "Vertex AI"
    assert facts["variables"] == env


def test_a_wrong_cluster_is_said(show):
    env = {"TF_CONFIG": '{"cluster": {"worker": ["a"]}}'}

    assert "\n\nThe cluster cannot be read: TF_CONFIG " in show(env)
    assert json.loads(show(env, "--json"))["cluster"]["error"].startswith("TF_CONFIG ")


def test_alone_there_are_no_variables(show):
    out = show({})

    assert "| variables" not in out
    assert out.endswith(
        "This process is alone: rank 0 of 1.\nNo variable describes a cluster.\n"
    )


def test_json(show):
    facts = json.loads(show({"TF_CONFIG": TF_CONFIG, "TF_TOKEN": "x"}, "--json"))

    assert [*facts] == [*SECTIONS, "cluster"]
    assert facts["variables"] == {"TF_CONFIG": TF_CONFIG, "TF_TOKEN": "(hidden)"}
    assert facts["cluster"]["rank"] == 1
    assert facts["cluster"]["variables"] == ["TF_CONFIG"]
    assert facts["network"] == {"host_name": "node1"}


def test_devices_are_asked_for(show, monkeypatch):
    asked = []

    def device_facts(env):
        asked.append(env["TF_X"])
        return {"logical_devices": ["CPU:0", "CPU:1"]}

    monkeypatch.setattr(env_devices, "device_facts", device_facts)
    assert "| devices" not in show({"TF_X": "1"})
    assert asked == []

    out = show({"TF_X": "1"}, "--devices")

    assert "| logical devices | CPU:0 |\n|                 | CPU:1 |" in out
    facts = json.loads(show({"TF_X": "1"}, "--devices", "--json"))
    assert facts["devices"] == {"logical_devices": ["CPU:0", "CPU:1"]}


def test_a_user_without_a_home(show, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)

    assert "| set by  | Keras's default" in show({})


@pytest.mark.parametrize(
    ("name", "fact", "cell"),
    [
        ("total_bytes", 2**30 * 1.5, "1.5 GiB"),
        ("total_bytes", 1023, "1023 B"),
        ("total_bytes", 2**60, "1.05e+06 TiB"),
        ("total_bytes", "none", "none"),
        ("total_bytes", None, "unknown"),
        ("cores", 1.5, "1.5"),
        ("cores", 64, "64"),
        ("XLA_FLAGS", "a|b\nc", r"a\|b\nc"),
        ("TF_CONFIG", "x" * 301, "x" * 300 + " ..."),
    ],
)
def test_a_cell(show, monkeypatch, name, fact, cell):
    monkeypatch.setattr(env_module, "core_facts", lambda: {name: fact})

    assert f"| {cell} " in show({})


def test_a_list_that_is_empty(show, monkeypatch):
    monkeypatch.setattr(env_module, "core_facts", lambda: {"which": []})

    assert "| which | none  |\n" in show({})
