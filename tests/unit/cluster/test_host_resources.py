import json
import os
import sys

import pytest

from tfdist.cluster.hosts import resources as host_resources
from tfdist.cluster.hosts.resources import (
    core_facts,
    gpu_facts,
    limit_facts,
    memory_facts,
    ranges_of,
)


@pytest.fixture
def root(tmp_path):
    """Return a root with the files of a kernel."""
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Fast 3000\nmodel name\t: Slow\n",
        "proc/meminfo": "MemTotal:   2048 kB\nMemFree: 1 kB\nMemAvailable: 1024 kB\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "dev/shm/x": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_cores(root, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 6})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)

    assert core_facts(root) == {
        "processor": "Fast 3000",
        "cores": 8,
        "cores_allowed": 4,
        "which_are_allowed": "0-2,6",
        "cgroup_limit": 1.5,
    }


def test_memory(root):
    facts = memory_facts(root)

    assert facts["total_bytes"] == 2 * 2**20
    assert facts["available_bytes"] == 2**20
    assert facts["cgroup_limit_bytes"] == "none"
    assert facts["dev_shm_bytes"] > 0


def test_a_system_that_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)

    assert set(core_facts(tmp_path).values()) == {None}
    assert set(memory_facts(tmp_path).values()) == {None}


def test_a_file_of_something_else(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_bytes(b"MemTotal: much\n\xff\n")

    assert memory_facts(tmp_path)["total_bytes"] is None


def test_limits(monkeypatch):
    import resource

    limits = {resource.RLIMIT_NOFILE: (1024, resource.RLIM_INFINITY)}
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(
        resource, "getrlimit", lambda which: limits.get(which, unlimited)
    )
    monkeypatch.delattr(resource, "RLIMIT_NPROC")

    assert limit_facts() == {
        "open_files": 1024,
        "open_files_at_most": "none",
        "locked_memory_bytes": "none",
        "processes": None,
        "core_file_bytes": "none",
        "stack_bytes": "none",
    }


def test_limits_of_this_process_can_be_written():
    assert json.loads(json.dumps(limit_facts())) == limit_facts()


def test_a_system_without_limits(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)

    assert set(limit_facts().values()) == {None}


@pytest.fixture
def nvidia(tmp_path):
    """Return what makes a command `nvidia-smi`, and returns the environment."""

    def make(script):
        command = tmp_path / "nvidia-smi"
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
        return {"PATH": str(tmp_path)}

    return make


def test_gpus(nvidia):
    env = nvidia('echo "GPU 0: A $1"; echo "GPU 1: B"') | {"CUDA_VISIBLE_DEVICES": "1"}

    assert gpu_facts(env) == {"nvidia_smi": ["GPU 0: A -L", "GPU 1: B"], "visible": "1"}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 0", "none"),
        ("echo no driver >&2; exit 9", "failed with exit code 9: no driver"),
        ("echo no devices; exit 6", "failed with exit code 6: no devices"),
    ],
)
def test_a_host_whose_gpus_cannot_be_listed(nvidia, script, said):
    assert gpu_facts(nvidia(script))["nvidia_smi"] == said


def test_a_command_that_hangs(nvidia, monkeypatch):
    monkeypatch.setattr(host_resources, "_NVIDIA_SECONDS", 0.1)

    said = gpu_facts(nvidia("exec /bin/sleep 60"))["nvidia_smi"]

    assert "timed out after 0.1 seconds" in said


def test_a_host_without_nvidia():
    facts = {"nvidia_smi": "not installed", "visible": "all"}

    assert gpu_facts({"PATH": ""}) == gpu_facts({}) == facts


def test_ranges():
    assert [ranges_of(numbers) for numbers in ([], [3], [0, 1], [0, 2, 3, 4, 9])] == [
        "",
        "3",
        "0-1",
        "0,2-4,9",
    ]
