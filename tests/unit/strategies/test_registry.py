import json

import pytest
import tensorflow as tf

from tfdist.strategies import (
    AllReduceStrategy,
    CentralStorageStrategy,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    create,
)
from tfdist.strategies.registry import STRATEGIES


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("all_reduce", AllReduceStrategy, {}),
        ("mirrored", MirroredStrategy, {}),
        ("multi_worker_mirrored", MultiWorkerMirroredStrategy, {}),
        ("central_storage", CentralStorageStrategy, {}),
        ("one_device", OneDeviceStrategy, {"device": "CPU:0"}),
    ],
)
def test_a_strategy_is_made_by_its_name(name, kind, options):
    assert isinstance(create(name, **options), kind)


def test_several_devices_of_one_process_are_mirrored(capsys):
    assert isinstance(create(), MirroredStrategy)
    assert capsys.readouterr().err == (
        "tfdist: strategy mirrored, because this one process has 2 CPUs.\n"
    )


@pytest.fixture
def one_cpu(monkeypatch):
    # `tf.config.list_logical_devices`, which starts TensorFlow, still has two.
    monkeypatch.setattr(
        tf.config, "get_logical_device_configuration", lambda device: None
    )


def test_one_device_needs_no_other(one_cpu, monkeypatch, capsys):
    made = []
    monkeypatch.setitem(STRATEGIES, "one_device", lambda **o: made.append(o))
    create()

    assert made == [{"device": "CPU:0"}]
    assert capsys.readouterr().err == (
        "tfdist: strategy one_device, because this one process has one CPU.\n"
    )


def test_alone_the_options_of_several_processes_are_taken(one_cpu):
    assert isinstance(create(compression="fp16"), AllReduceStrategy)


def test_several_processes_all_reduce(monkeypatch, capsys):
    made = []
    monkeypatch.setitem(STRATEGIES, "all_reduce", lambda **o: made.append(o))
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    for name, value in zip(names, "0202", strict=True):
        monkeypatch.setenv(f"HOROVOD_{name}", value)
    create(compression="bf16")

    assert made == [{"compression": "bf16"}]
    assert capsys.readouterr().err == (
        "tfdist: strategy all_reduce, because 2 processes train.\n"
    )


def test_an_environment_with_servers_chooses_parameter_servers(monkeypatch):
    made = []
    monkeypatch.setitem(STRATEGIES, "parameter_server", lambda **o: made.append(o))
    jobs = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    monkeypatch.setenv(
        "TF_CONFIG",
        json.dumps({"cluster": jobs, "task": {"type": "chief", "index": 0}}),
    )
    create(consistency="sync")

    assert made == [{"consistency": "sync"}]


def test_options_reach_the_constructor():
    with pytest.raises(ValueError, match="bucket_bytes must not be negative"):
        create("all_reduce", bucket_bytes=-1)
    with pytest.raises(ValueError, match="consistency must be one of async, bounded"):
        create("parameter_server", consistency="eventual")
    with pytest.raises(TypeError, match="consistency"):
        create("all_reduce", consistency="sync")


def test_an_unknown_name_is_refused():
    with pytest.raises(
        ValueError,
        match=r"There is no strategy of this name\. Received: name='allreduce'\. Use "
        r"'auto' or one of: all_reduce, central_storage",
    ):
        create("allreduce")
