"""`tfdist bench` and benchmarks/ with real processes: figures, but no times."""

import json
import sys
from pathlib import Path

import pytest
from launcher import COMMAND, printed_by

pytestmark = pytest.mark.slow

ALL_REDUCE = ("allreduce", "--sizes", "1KiB", "--repeats", "2")
TINY = ("--batch-sizes", "4", "--steps", "2", "--repeats", "1")
SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def bench(*arguments):
    """Run `tfdist bench` with --json, and return the figures."""
    return json.loads(printed_by(COMMAND, "bench", *arguments, "--json"))["figures"]


def script(name, *arguments):
    """Run a script of benchmarks/ with --json, and return the figures."""
    return json.loads(printed_by(sys.executable, SCRIPTS / name, *arguments, "--json"))


def test_training():
    [column] = script("training.py", *TINY)

    assert (column["batch_size"], column["processes"]) == (4, 2)
    assert set(column["step_seconds"]) == {"plain", "alone", "apart", "weak", "strong"}
    assert min(column["step_seconds"].values()) > 0
    for name in ("speed_against_plain", "weak_efficiency", "strong_efficiency"):
        assert column[name]["median"] > 0
    assert 0 <= column["waiting_share"]["median"] < 1


def test_the_all_reduce_of_all_that_is_installed():
    [row] = bench(*ALL_REDUCE)

    assert row["bytes"] == 1024
    assert {"single_ring", "tensorflow", "mpi"} <= row["seconds"].keys()
    assert min(row["seconds"].values()) > 0
    assert min(row["bus_bytes_per_second"].values()) > 0
    # MPI against the others.
    assert row["bandwidth_against"].keys() == row["seconds"].keys() - {"mpi"}
    assert row["bandwidth_against"]["single_ring"].keys() == {"median", "low", "high"}


def test_backups():
    figures = script("backup.py", "--epochs", "2", "--repeats", "1")

    assert figures["processes"] == 2
    assert set(figures["epoch_seconds"]) == {"none", "tfdist", "steps", "keras"}
    assert min(figures["epoch_seconds"].values()) > 0
    # An epoch has 23 steps: of 92 the first 46, after which 4 are saved, do not count.
    counts = {name: saves["count"] for name, saves in figures["saves"].items()}
    assert counts == {"tfdist": 2, "steps": 5, "keras": 2}
    for name in ("tfdist", "steps"):
        saves = figures["saves"][name]
        assert saves["hold_seconds"]["median"] > 0
        assert saves["disk_seconds"]["median"] > 0
        # The weights, and two moments of each.
        assert saves["bytes"] > 3 * 53_002 * 4


def test_parameter_servers():
    tiny = ("--steps", "8", "--repeats", "1", "--steps-per-execution", "4")
    [column] = script("parameter_server.py", *tiny, "--workers", "1")

    assert {"tfdist", "loop", "reading_loop"} <= column["jobs"].keys()
    for job in column["jobs"].values():
        assert job["steps_per_second"]["median"] > 0
        assert job["processor_seconds_per_step"]["median"] > 0
        # Not counted without `ss`. Weights and gradients travel in every step.
        if job["bytes_per_step"] is not None:
            assert job["bytes_per_step"]["median"] > 2 * 235_146 * 4
    for ratios in (column["speed_against"], column["thrift_against"]):
        assert min(ratio["median"] for ratio in ratios.values()) > 0
    # Two epochs to warm up, and one that counts.
    assert sum(column["staleness"]["histogram"].values()) == 3 * 8


def test_input():
    tiny = ("--examples", "16", "--image-size", "64", "--batch-size", "4")
    figures = script("input.py", *tiny, "--repeats", "1", "--cores", "1")

    assert (figures["examples"], figures["image_size"]) == (16, 64)
    assert min(figures["examples_per_second"].values()) > 0
    assert figures["speed_against"].keys() == {"naive", "sequential", "tuned"}
