"""Shares of cores, with hand-made machines."""

import os
import sys

import pytest

from tfdist.launch.cores import available_cores, share_of_cores


@pytest.mark.parametrize(
    ("cores", "size", "shares"),
    [
        ([0, 1], 2, [(0,), (1,)]),
        ([0, 1, 2, 3], 1, [(0, 1, 2, 3)]),
        ([4, 5, 6, 7, 8], 2, [(4, 5, 6), (7, 8)]),
        ([0, 1, 2, 3, 4], 3, [(0, 1), (2, 3), (4,)]),
        ([0, 1], 3, [(), (), ()]),
    ],
)
def test_shares(cores, size, shares):
    assert [share_of_cores(cores, rank=r, size=size) for r in range(size)] == shares


def test_only_cores_that_this_process_may_use(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {6, 2})

    assert available_cores(tmp_path) == (2, 6)


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


def test_unreadable_topology_counts_for_nothing(monkeypatch, tmp_path):
    folder = tmp_path / "cpu0" / "topology"
    folder.mkdir(parents=True)
    (folder / "core_id").write_text("none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})

    assert available_cores(tmp_path) == (0, 1)


def test_another_system_than_linux_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")

    with pytest.raises(OSError, match=r"Linux only\. Received: sys.platform='darwin'"):
        available_cores()
