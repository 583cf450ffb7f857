"""Cores, ports, addresses and versions of this machine."""

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.launching import machine
from tfdist.launching.machine import (
    available_cores,
    free_ports,
    held_folder,
    is_this_machine,
    remove_left,
    share_near_gpu,
)


@pytest.mark.parametrize(
    ("gpus", "size", "shares"),
    [
        ([(0, 1), (2, 3)], 2, [(0, 1), (2, 3)]),
        ([(2, 3), (0, 1)], 2, [(2, 3), (0, 1)]),
        # Ranks whose GPUs share a node divide its cores, wherever the GPUs stand.
        ([(0, 1, 2), (3, 4), (0, 1, 2), (3, 4)], 4, [(0, 1), (3,), (2,), (4,)]),
        # GPUs that no rank takes do not count.
        ([(0, 1), (2, 3), (0, 1), ()], 2, [(0, 1), (2, 3)]),
        # One rank has no GPU, no core near it, or too few.
        ([(0, 1), (2, 3)], 3, [(), (), ()]),
        ([(0, 1), ()], 2, [(), ()]),
        ([(0,), (0,), (1, 2)], 3, [(), (), ()]),
        ([], 2, [(), ()]),
        # A single rank may take all GPUs.
        ([(0, 1), (2, 3)], 1, [()]),
    ],
)
def test_shares_near_gpus(gpus, size, shares):
    assert [share_near_gpu(gpus, rank=r, size=size) for r in range(size)] == shares


def test_threads_of_one_core_and_cores_of_one_chip_are_neighbours(
    monkeypatch, tmp_path
):
    # Two chips with two cores each; the second threads are numbered after all first.
    for core in range(8):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{core // 2 % 2}\n")
        (folder / "core_id").write_text(f"{core % 2}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))

    assert available_cores(tmp_path) == (0, 4, 1, 5, 2, 6, 3, 7)
    # Without a readable topology the numbers count.
    assert available_cores(tmp_path / "none") == tuple(range(8))


@pytest.fixture
def ephemeral_range(monkeypatch, tmp_path):
    """Return a function that sets the range of ports for outgoing connections."""
    file = tmp_path / "range"
    monkeypatch.setattr(machine, "_EPHEMERAL_RANGE", file)
    return file.write_text


def test_ports_are_different_and_can_be_bound():
    found = free_ports(20)

    assert len(set(found)) == 20
    for port in found:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("10100\t60999\n", 10_099),
        # Without room below the range they lie anywhere.
        ("1024\t65535\n", 65_535),
        ("70000 80000", 65_535),
        # The usual range is assumed if the kernel does not provide it.
        ("", 32_767),
        ("many", 32_767),
    ],
)
def test_ports_lie_below_the_ephemeral_range(ephemeral_range, text, last):
    ephemeral_range(text)

    assert all(10_000 <= port <= last for port in free_ports(20))


def test_ports_are_given_once_before_they_are_bound(monkeypatch):
    monkeypatch.setattr(machine.random, "sample", lambda ports, count: [*ports[:count]])
    program = (
        "from tfdist.launching import machine\n"
        "machine.random.sample = lambda ports, count: [*ports[:count]]\n"
        "print(*machine.free_ports(3))"
    )

    found = free_ports(3) + free_ports(3)
    # While this process has them, no other is given them.
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    found += map(int, done.stdout.split())
    assert len(set(found)) == 9


def test_the_first_free_ports_of_a_range_are_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        found = free_ports(2, within=range(port, 65_536))
        message = r"enough free ports on 127\.0\.0\.1.*2 wanted, 0 found\. End some"
        with pytest.raises(OSError, match=message):
            free_ports(2, within=range(port, port + 1))

    assert port < found[0] < found[1] < port + 100


@pytest.mark.parametrize(
    ("host", "is_it"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("[::1]", True),
        # From ranges for examples in documents.
        ("203.0.113.7", False),
        ("[2001:db8::7]", False),
        ("no-such.invalid", False),
    ],
)
def test_hosts_that_are_this_machine(host, is_it):
    assert is_this_machine(host) is is_it


@pytest.mark.parametrize(
    ("addresses", "is_it"),
    [
        ({"127.0.1.1", "127.0.0.1"}, True),
        ({"127.0.0.1", "203.0.113.7"}, False),
        (set(), False),
    ],
)
def test_all_addresses_of_a_name_count(monkeypatch, addresses, is_it):
    monkeypatch.setattr(machine, "look_up", lambda host: frozenset(addresses))

    assert is_this_machine("node1") is is_it


def test_what_a_killed_launcher_has_left_is_removed(tmp_path):
    names = ("tfdist-mpi-left", "tfdist-mpi-held", "tfdist-mpi-new", "other")
    left, held, new, other = (tmp_path / name for name in names)
    for folder in (left, held, new, other):
        folder.mkdir()
        (folder / "segment").touch()
    pipe = tmp_path / "tfdist-mpi-pipe"
    os.mkfifo(pipe)
    for folder in (left, held, other, pipe):
        os.utime(folder, (1, 1))
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    with held_folder("tfdist-mpi-", str(tmp_path)) as name:
        assert set(tmp_path.iterdir()) == {held, new, other, pipe, Path(name)}
        os.utime(name, (1, 1))
        remove_left("tfdist-mpi-", str(tmp_path))
        assert Path(name).is_dir()
    os.close(lock)

    assert set(tmp_path.iterdir()) == {held, new, other, pipe}
