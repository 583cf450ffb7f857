"""Devices of a host with GPUs, which a fake of TensorFlow's functions stands for."""

import subprocess
import sys

import pytest
import tensorflow as tf

from tfdist.devices import (
    cards,
    find,
    grow_memory,
    limit_memory,
    logical,
    pci_address,
    physical,
    pin,
    split,
)


def device(kind, number):
    return tf.config.PhysicalDevice(f"/physical_device:{kind}:{number}", kind)


class Host:
    """Devices and settings that TensorFlow would hold."""

    def __init__(self):
        self.devices = self.visible = [device("CPU", 0)]
        self.configurations, self.growing = {}, []
        self.has_started = False

    def has(self, gpus):
        """Add GPUs to the host."""
        gpus = [device("GPU", number) for number in range(gpus)]
        self.devices = self.visible = [self.devices[0], *gpus]

    def list(self, kind=None):
        return [each for each in self.devices if kind in (None, each.device_type)]

    def get_visible(self, kind=None):
        return [each for each in self.visible if kind in (None, each.device_type)]

    def set_visible(self, devices, kind):
        self.check("Visible devices cannot be modified")
        others = [each for each in self.visible if each.device_type != kind]
        self.visible = [*others, *devices]

    def configure(self, device, configurations):
        self.check("Virtual devices cannot be modified")
        self.configurations[device] = configurations

    def grow(self, device, enable):
        self.check("Physical devices cannot be modified")
        # As TensorFlow refuses it.
        assert device not in self.configurations
        self.growing.append((device.name, enable))

    def check(self, message):
        if self.has_started:
            raise RuntimeError(message)


@pytest.fixture
def host(monkeypatch):
    """Replace TensorFlow's functions about devices."""
    host = Host()
    for name, function in {
        "list_physical_devices": host.list,
        "get_visible_devices": host.get_visible,
        "set_visible_devices": host.set_visible,
        "get_logical_device_configuration": host.configurations.get,
        "set_logical_device_configuration": host.configure,
    }.items():
        monkeypatch.setattr(tf.config, name, function)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", host.grow)
    return host


def visible(host):
    return [gpu.name[-5:] for gpu in host.get_visible("GPU")]


def limits(host, number):
    return [each.memory_limit for each in host.configurations[host.devices[number]]]


# Devices are split once in a process, and placement is logged until it ends.
PROGRAM = """
import tfdist

def message_of(function, *arguments):
    try:
        function(*arguments)
    except RuntimeError as error:
        return str(error)

assert tfdist.devices.split("CPU:0", 2) == ("CPU:0", "CPU:1")
# Not too late, because looking does not start TensorFlow.
assert tfdist.devices.logical() == ("CPU:0", "CPU:1")
assert tfdist.devices.split("cpu:0", 3) == ("CPU:0", "CPU:1", "CPU:2")
tfdist.devices.log_placement()

import tensorflow as tf

@tf.function
def train_step(x):
    with tf.device("CPU:1"):
        return tf.multiply(x, 2.0, name="on_the_second")

train_step(1.0)
names = [device.name for device in tf.config.list_logical_devices()]
assert names == [f"/device:{name}" for name in tfdist.devices.logical()], names
# The same again changes nothing.
tfdist.devices.split("CPU:0", 3)
print(message_of(tfdist.devices.split, "CPU:0", 2))
print(message_of(tfdist.devices.log_placement))
"""


def test_a_processor_is_split_and_placement_logged_before_tensorflow_starts(forked):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    (placed,) = (x for x in done.stdout.splitlines() if x.startswith("on_the_second: "))
    assert placed.endswith("device:CPU:1")
    too_late, not_logged = done.stdout.splitlines()[-2:]
    assert too_late.startswith(
        "A device must be split or limited before TensorFlow starts its devices. "
        "Received: device='CPU:0' in a TensorFlow that has already started them ("
    )
    assert not_logged.startswith(
        "Placement must be logged before TensorFlow starts its devices. Received: "
        "log_placement() in a TensorFlow that has already started them (an operation "
    )


def test_physical_devices_have_short_names(host):
    host.has(gpus=2)

    assert physical() == ("CPU:0", "GPU:0", "GPU:1")
    assert physical("gpu") == ("GPU:0", "GPU:1")
    assert physical("TPU") == ()


def test_logical_devices_are_the_visible_ones_and_their_parts(host):
    host.has(gpus=4)
    pin(0, 2)
    assert logical("GPU") == ("GPU:0",)
    host.has(gpus=3)
    split("GPU:0", memory_limit_mib=[10, 20])
    limit_memory("GPU:1", 30)

    assert logical() == ("CPU:0", "GPU:0", "GPU:1", "GPU:2", "GPU:3")


@pytest.mark.parametrize(
    "name",
    ["GPU:1", "/gpu:1", "/device:GPU:1", "/physical_device:GPU:1"]
    + ["/job:localhost/replica:0/task:0/device:GPU:01"],
)
def test_a_device_is_found_by_every_spelling(host, name):
    host.has(gpus=2)

    assert find(name) == host.devices[2]


def test_an_unknown_device_is_refused(host):
    with pytest.raises(ValueError, match=r"one of: CPU:0\. A GPU is missing if .*env"):
        find("GPU:0")
    host.has(gpus=1)
    for name in ("GPU:2", "GPU", "", None):
        with pytest.raises(
            ValueError,
            match=rf"Received: device={name!r}\. Use one of: CPU:0, GPU:0\. "
            "CUDA_VISIBLE_DEVICES and tfdist.devices.pin hide others",
        ):
            find(name)


def test_the_parts_of_a_gpu_have_memory_of_their_own(host):
    host.has(gpus=2)

    assert split("GPU:1", memory_limit_mib=[100, 200]) == ("GPU:1", "GPU:2")
    assert split("GPU:1", 2, memory_limit_mib=(100, 200)) == ("GPU:1", "GPU:2")
    assert limits(host, 2) == [100, 200]
    assert limit_memory("GPU:1", 100) == "GPU:1"
    assert limits(host, 2) == [100]


@pytest.mark.parametrize(
    ("device", "parts", "limits", "message"),
    [
        ("GPU:0", None, None, "memory_limit_mib must hold a positive"),
        ("GPU:0", None, [100, 0], "memory_limit_mib must hold a positive"),
        ("GPU:0", 3, [1, 2], r"parts=3, memory_limit_mib=\[1, 2\]\. Leave"),
        ("CPU:0", None, [1, 2], r"are for GPUs\. .*Use split\('CPU:0', 2\)"),
        ("CPU:0", None, None, r"parts=None\. Use split\('CPU:0', 2\)"),
        ("CPU:0", 0, None, r"parts=0\. Use split\('CPU:0', 2\)"),
    ],
)
def test_an_impossible_split_is_refused(host, device, parts, limits, message):
    host.has(gpus=1)

    with pytest.raises(ValueError, match=message):
        split(device, parts, memory_limit_mib=limits)


def test_the_memory_of_all_visible_gpus_grows_unless_it_has_a_limit(host):
    assert grow_memory() == ()
    host.has(gpus=2)
    assert grow_memory() == ("GPU:0", "GPU:1")
    assert [name[-5:] for name, _ in host.growing] == ["GPU:0", "GPU:1"]
    assert limit_memory("GPU:1", 100) == "GPU:1"

    with pytest.raises(ValueError, match=r"Received: a limit on GPU:1\. Leave out one"):
        grow_memory()

    assert len(host.growing) == 2


def test_settings_are_too_late_once_the_gpus_have_started(host):
    host.has(gpus=2)
    host.has_started = True

    with pytest.raises(RuntimeError, match=r"set to grow before .*Received: 2 GPUs in"):
        grow_memory()
    with pytest.raises(RuntimeError, match=r"split or limited before .*device='GPU:1'"):
        limit_memory("GPU:1", 100)
    with pytest.raises(RuntimeError, match=r"its GPU before .* Received: local_rank=1"):
        pin(1, 2)


def test_each_process_takes_the_gpu_of_its_local_rank(host):
    assert pin(1, 2) is None
    host.has(gpus=3)

    # The second call changes nothing.
    assert pin(1, 2) == pin(1, 2) == "GPU:0"
    assert visible(host) == ["GPU:1"]
    assert {*host.growing} == {("/physical_device:GPU:1", True)}


def test_the_local_rank_of_the_process_is_the_default(host, monkeypatch):
    host.has(gpus=3)
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"worker": ["a:1", "b:1", "b:2"]},'
        ' "task": {"type": "worker", "index": 2}}',
    )

    pin()

    assert visible(host) == ["GPU:1"]


def test_a_process_keeps_the_only_gpu_that_it_sees(host):
    host.has(gpus=1)
    host.set_visible = None

    assert pin(1, 2) == "GPU:0"


def test_memory_that_was_limited_stays_so(host):
    host.has(gpus=2)
    for gpu in physical("GPU"):
        limit_memory(gpu, 1024)

    pin(1, 2)

    assert (visible(host), host.growing) == (["GPU:1"], [])


@pytest.mark.parametrize(
    ("local_rank", "local_size", "message"),
    [
        (0, 3, "Received: 3 processes and 2 GPUs"),
        (-1, 2, r"local_rank=-1, local_size=2\."),
        (2, 2, r"local_rank=2, local_size=2\."),
    ],
)
def test_an_impossible_local_rank_is_refused(host, local_rank, local_size, message):
    host.has(gpus=2)

    with pytest.raises(ValueError, match=message):
        pin(local_rank, local_size)

    assert visible(host) == ["GPU:0", "GPU:1"]


class Cuda:
    """Stands for the library of NVIDIA's driver, with two cards."""

    def __init__(self, failing=None):
        self.failing, self.addresses = failing, [b"0000:3b:00.0", b"0000:86:00.0"]

    def cuInit(self, flags):
        return int(self.failing == "cuInit")

    def cuDeviceGet(self, device, number):
        device._obj.value = 40 + number
        return int(number >= len(self.addresses))

    def cuDeviceGetPCIBusId(self, address, size, device):
        address.value = self.addresses[device.value - 40]
        return 0


@pytest.mark.parametrize(
    ("number", "failing", "address"),
    [
        (0, None, "0000:3b:00.0"),
        (1, None, "0000:86:00.0"),
        (2, None, ""),
        (1, "cuInit", ""),
    ],
)
def test_cuda_tells_the_address_of_a_gpu(number, failing, address):
    assert pci_address(number, Cuda(failing)) == address


def test_ranks_that_keep_other_gpus_have_other_cards(host):
    host.has(gpus=2)
    both = cards()
    found = []
    for rank in range(2):
        host.has(gpus=2)
        pin(rank, 2)
        found += cards()

    assert found == both
    assert len({*both}) == 2


def test_the_parts_of_a_gpu_are_one_card(host):
    host.has(gpus=1)
    split("GPU:0", memory_limit_mib=[100, 100])

    first, second = cards()
    assert first == second


def test_a_host_without_gpus_has_no_cards(host):
    assert cards() == []
