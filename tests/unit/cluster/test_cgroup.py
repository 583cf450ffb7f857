"""Limits of control groups, read from files of a kernel that are made here."""

import pytest

from tfdist.cluster.hosts.resources import cgroup_limit

UNLIMITED = str((1 << 63) - 4096)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes files below a root, and returns the root."""

    def write(files):
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
        return tmp_path

    return write


def limits(root):
    return cgroup_limit("cpu", root), cgroup_limit("memory", root)


def of_version_2(files, path="/job/step"):
    groups = {"proc/self/cgroup": f"0::{path}"}
    return groups | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}


def of_version_1(files, path="/job"):
    groups = f"5:memory:{path}\n4:cpu,cpuacct:{path}\n1:name=systemd:/\n0::/"
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    return {"proc/self/cgroup": groups} | files


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"job/step/cpu.max": "150000 100000"}, 1.5),
        ({"job/step/cpu.max": "max 100000", "job/cpu.max": "200000 100000"}, 2.0),
        ({"job/step/cpu.max": "400000 100000", "cpu.max": "100000 100000"}, 1.0),
        ({"job/step/cpu.max": "much"}, "none"),
        ({}, "none"),
    ],
)
def test_cores_by_version_2(write, files, expected):
    assert cgroup_limit("cpu", write(of_version_2(files))) == expected


def test_a_container_sees_only_its_own_group(write):
    files = {"cpu.max": "50000 100000", "memory.max": "9"}

    assert limits(write(of_version_2(files, "/../pods/of/the/host"))) == (0.5, 9)


@pytest.mark.parametrize("folder", ["cpu,cpuacct/job", "cpu"])
@pytest.mark.parametrize(("quota", "expected"), [("300000", 3.0), ("-1", "none")])
def test_cores_by_version_1(write, folder, quota, expected):
    files = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": "100000"}
    files = {f"{folder}/{name}": text for name, text in files.items()}

    assert cgroup_limit("cpu", write(of_version_1(files))) == expected


def test_memory_by_version_2(write):
    files = {"job/step/memory.max": "max", "job/memory.max": "1073741824"}

    assert cgroup_limit("memory", write(of_version_2(files))) == 2**30


@pytest.mark.parametrize(("own", "expected"), [("4096", 4096), (UNLIMITED, "none")])
def test_memory_by_version_1(write, own, expected):
    files = {
        "memory/job/memory.limit_in_bytes": own,
        "memory/memory.limit_in_bytes": UNLIMITED,
    }

    assert cgroup_limit("memory", write(of_version_1(files))) == expected


def test_both_versions_side_by_side(write):
    files = of_version_1({"unified/cpu.max": "100000 100000"})

    assert cgroup_limit("cpu", write(files)) == 1.0


def test_a_system_without_groups(tmp_path):
    assert limits(tmp_path) == (None, None)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\nwhat is this\n")
    assert limits(tmp_path) == (None, None)
