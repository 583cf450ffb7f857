import pytest
import tensorflow as tf

from tfdist.devices import limit_memory, logical, physical, pin, split
from tfdist.devices.listing import find


def test_physical_devices_have_short_names(host):
    host.has(gpus=2)

    assert physical() == ("CPU:0", "GPU:0", "GPU:1")
    assert physical("gpu") == ("GPU:0", "GPU:1")
    assert physical("TPU") == ()


def test_hidden_gpus_are_physical_and_not_logical(host):
    host.has(gpus=2)
    pin(1, 2)

    assert physical("GPU") == ("GPU:0", "GPU:1")
    assert logical("GPU") == ("GPU:0",)


def test_parts_are_counted_in_one_row(host):
    host.has(gpus=3)
    split("GPU:0", memory_limit_mib=[10, 20])
    limit_memory("GPU:1", 30)

    assert logical("gpu") == ("GPU:0", "GPU:1", "GPU:2", "GPU:3")
    assert logical() == ("CPU:0", *logical("GPU"))


def test_they_are_those_of_tensorflow():
    ours = logical()

    started = [device.name for device in tf.config.list_logical_devices()]
    assert [name.removeprefix("/device:") for name in started] == [*ours]
    assert len(tf.config.list_physical_devices("CPU")) == len(physical("CPU"))


@pytest.mark.parametrize(
    "name",
    ["GPU:1", "gpu:1", "/gpu:1", "/device:GPU:1", "/physical_device:GPU:1"]
    + ["/job:localhost/replica:0/task:0/device:GPU:01"],
)
def test_every_spelling_finds_it(host, name):
    host.has(gpus=2)

    assert find(name) == host.devices[2]


@pytest.mark.parametrize("name", ["GPU:2", "GPU", "", "1", "TPU:0", None])
def test_an_unknown_device_is_refused(host, name):
    host.has(gpus=1)

    with pytest.raises(
        ValueError,
        match=rf"Received: device={name!r}\. Use one of: CPU:0, GPU:0\. "
        "CUDA_VISIBLE_DEVICES and tfdist.devices.pin hide others",
    ):
        find(name)


def test_on_a_host_without_gpus_it_says_where_to_look(host):
    with pytest.raises(ValueError, match=r"one of: CPU:0\. A GPU is missing if .*env"):
        find("GPU:0")
