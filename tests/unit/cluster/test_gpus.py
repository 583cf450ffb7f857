"""GPUs and cores of a host, read from files of a kernel and a TensorFlow made here."""

import os

import pytest

from tfdist.cluster.this_host import (
    core_quota,
    cores_of_gpus,
    count_gpus,
    may_use_gpu,
    visible_gpus,
)

GPU, VGA, AUDIO, SWITCH = "0x030200", "0x030000", "0x040300", "0x068000"
# One node has cores 0, 1, 8 and 9, the other one 2, 3, 10 and 11.
NODES = {0: "0-1,8-9", 1: "2-3,10-11", 2: ""}
CORES = (0, 8, 1, 9, 2, 10, 3, 11)
NODE_0, NODE_1 = (0, 8, 1, 9), (2, 10, 3, 11)


@pytest.mark.parametrize(
    ("device", "visible", "is_used"),
    [
        ("nvidia0", None, True),
        ("kfd", None, True),
        ("dxg", "0", True),
        ("nvidia0", "", False),
        ("nvidia0", "-1", False),
        ("nvidiactl", None, False),
        ("null", None, False),
    ],
)
def test_a_gpu_that_is_visible_may_be_used(device, visible, is_used, tmp_path):
    (tmp_path / device).touch()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert may_use_gpu(environ, tmp_path) is is_used


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("found = os.environ['CUDA_VISIBLE_DEVICES'].split(',')", 3),
        ("print('Welcome! 9'); found = ['GPU']", 1),
        ("found = []", 0),
        ("raise ImportError('no libcudart')", 0),
        ("os._exit(0)", 0),
        ("os.kill(os.getpid(), 9)", 0),
        ("import signal; signal.pause()", 0),
    ],
)
def test_the_gpus_that_tensorflow_finds_are_counted(
    code, count, tmp_path, monkeypatch, capfd
):
    (tmp_path / "tensorflow.py").write_text(
        f"import os, types\n{code}\n"
        "config = types.SimpleNamespace(list_physical_devices={'GPU': found}.get)\n"
    )
    # A file in the current folder does not take the place of a package.
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "tensorflow.py").write_text("raise SystemExit\n")
    monkeypatch.chdir(tmp_path / "here")
    added = {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0,1,2"}
    seconds = 0.5 if "pause" in code else 300

    assert count_gpus({**os.environ, **added}, seconds) == count
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def write(tmp_path):
    """Return a function that writes the files of PCI devices, and returns the root."""

    def write(*devices, files, model="0x2330", vendor="0x10de"):
        for number, cores in NODES.items():
            node = tmp_path / f"sys/devices/system/node/node{number}"
            node.mkdir(parents=True)
            (node / "cpulist").write_text(f"{cores}\n")
        for address, kind, numa_node, *other in devices:
            folder = tmp_path / "sys/bus/pci/devices" / address
            folder.mkdir(parents=True)
            texts = {"vendor": vendor, "class": kind, "device": (other or [model])[0]}
            for name, text in {**texts, "numa_node": numa_node}.items():
                (folder / name).write_text(f"{text}\n")
        (tmp_path / "dev").mkdir()
        for name in ("nvidiactl", *(f"nvidia{number}" for number in range(files))):
            (tmp_path / "dev" / name).touch()
        return tmp_path

    return write


def test_gpus_are_in_pci_order_with_the_cores_near_them(write):
    root = write(
        ("0000:b1:00.0", GPU, 0),
        ("0000:1a:00.1", AUDIO, 0),
        ("0000:1a:00.0", VGA, 1),
        ("0000:03:00.0", SWITCH, 0),
        ("0001:00:00.0", GPU, 1),
        files=3,
    )

    assert cores_of_gpus(CORES, root) == (NODE_1, NODE_0, NODE_1)
    # The job has the cores 1, 2 and 9 alone.
    assert cores_of_gpus((1, 9, 2), root) == ((2,), (1, 9), (2,))


@pytest.mark.parametrize("numa_node", [-1, 2, 7])
def test_a_gpu_without_a_known_node_has_no_cores_near_it(numa_node, write):
    root = write(("0000:1a:00.0", GPU, numa_node), ("0000:b1:00.0", GPU, 0), files=2)

    assert cores_of_gpus(CORES, root) == ((), NODE_0)


@pytest.mark.parametrize(
    ("files", "model", "options"),
    [
        # A container has one of the two.
        (1, (), {}),
        (0, (), {}),
        # Of AMD.
        (2, (), {"vendor": "0x1002"}),
        # Several models have another order.
        (2, ("0x1fb1",), {}),
    ],
)
def test_gpus_of_which_cuda_may_number_others(files, model, options, write):
    devices = ("0000:1a:00.0", VGA, 0, *model), ("0000:b1:00.0", GPU, 1)
    root = write(*devices, files=files, **options)

    assert cores_of_gpus(CORES, root) == ()


def test_a_host_without_gpus(write, tmp_path):
    assert cores_of_gpus(CORES, tmp_path / "none") == ()
    assert cores_of_gpus(CORES, write(files=0)) == ()


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [(0,), (1,), (2,)]),
        ("2,0", [(2,), (0,)]),
        (" 1 ", [(1,)]),
        ("", []),
        ("-1", []),
        ("0,-1", []),
        ("0,0", []),
        ("0,3", []),
        ("0,", []),
        ("GPU-8932f937", []),
        ("MIG-4/1/0", []),
    ],
)
def test_visible_gpus_are_those_of_plain_numbers(visible, expected):
    assert [*visible_gpus([(0,), (1,), (2,)], visible)] == expected


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_the_quota_of_a_container_is_a_number_of_cores(files, quota, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")

    assert core_quota(tmp_path) == quota
