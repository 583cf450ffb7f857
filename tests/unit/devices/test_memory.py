import subprocess
import sys

import pytest

from tfdist.devices import grow_memory, limit_memory, split

# Devices are split once in a process.
PROGRAM = """
import tfdist

assert tfdist.devices.split("CPU:0", 2) == ("CPU:0", "CPU:1")
# Not too late, because looking does not start TensorFlow.
assert tfdist.devices.logical() == ("CPU:0", "CPU:1")
assert tfdist.devices.split("cpu:0", 3) == ("CPU:0", "CPU:1", "CPU:2")

import tensorflow as tf

names = [device.name for device in tf.config.list_logical_devices()]
assert names == [f"/device:{name}" for name in tfdist.devices.logical()], names
with tf.device("CPU:2"):
    one = tf.constant(1.0)
assert one.device.endswith("device:CPU:2"), one.device
# The same again changes nothing.
tfdist.devices.split("CPU:0", 3)
try:
    tfdist.devices.split("CPU:0", 2)
except RuntimeError as error:
    print(error)
"""


def limits(host, number):
    return [each.memory_limit for each in host.configurations[host.devices[number]]]


def test_a_processor_is_split_before_tensorflow_starts_and_not_after():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "A device must be split or limited before TensorFlow starts its devices. "
        "Received: device='CPU:0' in a TensorFlow that has already started them ("
    )


def test_the_parts_of_a_gpu_have_memory_of_their_own(host):
    host.has(gpus=2)

    assert split("GPU:1", memory_limit_mib=[100, 200]) == ("GPU:1", "GPU:2")
    assert split("GPU:1", 2, memory_limit_mib=(100, 200)) == ("GPU:1", "GPU:2")
    assert limits(host, 2) == [100, 200]


def test_a_limit_is_one_part(host):
    host.has(gpus=2)

    assert limit_memory("GPU:1", 100) == "GPU:1"
    assert limits(host, 2) == [100]


@pytest.mark.parametrize("limits", [None, [], [100, 0], [-1]])
def test_a_gpu_is_not_split_without_limits(host, limits):
    host.has(gpus=1)

    with pytest.raises(ValueError, match="memory_limit_mib must hold a positive"):
        split("GPU:0", memory_limit_mib=limits)


def test_as_many_parts_as_limits(host):
    host.has(gpus=1)

    with pytest.raises(ValueError, match=r"parts=3, memory_limit_mib=\[1, 2\]\. Leave"):
        split("GPU:0", 3, memory_limit_mib=[1, 2])


def test_a_processor_has_no_limits(host):
    with pytest.raises(ValueError, match=r"are for GPUs\. .*Use split\('CPU:0', 2\)"):
        split("CPU:0", memory_limit_mib=[1, 2])


@pytest.mark.parametrize("parts", [None, 0, -1])
def test_a_processor_needs_a_number_of_parts(host, parts):
    with pytest.raises(ValueError, match=rf"parts={parts}\. Use split\('CPU:0', 2\)"):
        split("CPU:0", parts)


def test_the_memory_of_all_visible_gpus_grows(host):
    assert grow_memory() == ()

    host.has(gpus=2)

    assert grow_memory() == ("GPU:0", "GPU:1")
    assert [name[-5:] for name, _ in host.growing] == ["GPU:0", "GPU:1"]


def test_what_has_a_limit_does_not_grow(host):
    host.has(gpus=2)
    limit_memory("GPU:1", 100)

    with pytest.raises(ValueError, match=r"Received: a limit on GPU:1\. Leave out one"):
        grow_memory()

    assert host.growing == []


def test_a_limit_after_growth_stands(host):
    host.has(gpus=1)
    grow_memory()

    assert limit_memory("GPU:0", 100) == "GPU:0"


def test_it_is_too_late_once_the_gpus_have_started(host):
    host.has(gpus=2)
    host.has_started = True

    with pytest.raises(RuntimeError, match=r"set to grow before .*Received: 2 GPUs in"):
        grow_memory()
    with pytest.raises(RuntimeError, match=r"split or limited before .*device='GPU:1'"):
        limit_memory("GPU:1", 100)
