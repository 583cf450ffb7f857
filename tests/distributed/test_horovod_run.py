"""`tfdist run --collective horovod` with real processes, from the outside."""

import json
import os
import re
import signal
import subprocess

import pytest
from launcher import assert_end, run, started

pytestmark = [
    pytest.mark.new_processes,
    pytest.mark.requires("horovodrun"),
    pytest.mark.slow,
]

SECONDS = 1200
HOROVOD = ("-np", "2", "--collective", "horovod")
# Says who it is and what it has summed up, in one line.
TALK = """
import json, os, sys
import horovod.tensorflow as hvd
import tensorflow as tf
import tfdist
hvd.init()
total = hvd.allreduce(tf.constant([1.0, hvd.rank()]), op=hvd.Sum, name="total")
facts = [tfdist.rank(), tfdist.size(), tfdist.local_rank(), tfdist.local_size()]
theirs = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]
names = sorted(name for name in os.environ if name.startswith(("HOROVOD", "NCCL")))
print(json.dumps({
    "facts": facts, "theirs": theirs, "total": total.numpy().tolist(),
    "cross": [hvd.cross_rank(), hvd.cross_size()],
    "env": {name: os.environ[name] for name in names},
}))
"""


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script and returns its path."""

    def write(code):
        (tmp_path / "train.py").write_text(code)
        return str(tmp_path / "train.py")

    return write


def test_the_processes_join_and_get_the_tuning(script, tmp_path):
    timeline = tmp_path / "timeline.json"
    tuning = ("--fusion-threshold-mb", "2", "--cycle-time-ms", "0.5")

    done = run(
        *(*HOROVOD, *tuning, "--timeline", str(timeline), script(TALK)),
        env=os.environ
        | {"HOROVOD_RANK": "7", "HOROVOD_ELASTIC": "1", "HOROVOD_CACHE_CAPACITY": "9"},
        timeout=SECONDS,
    )

    assert done.returncode == 0, done.stderr
    lines = dict(re.findall(r"^\[(\d)\] (\{.*)$", done.stdout, re.M))
    for rank in (0, 1):
        told = json.loads(lines[str(rank)])
        assert told["facts"] == told["theirs"] == [rank, 2, rank, 2]
        assert told["cross"] == [0, 1]
        assert told["total"] == [2.0, 1.0]
        env = told["env"]
        assert env["HOROVOD_FUSION_THRESHOLD"] == str(2 * 2**20)
        assert env["HOROVOD_CYCLE_TIME"] == "0.5"
        assert env["HOROVOD_CACHE_CAPACITY"] == "9"
        assert env["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
        assert "HOROVOD_ELASTIC" not in env
    assert "HorovodAllreduce" in timeline.read_text()


@pytest.mark.requires("taskset")
def test_a_dry_run_can_be_pasted(script):
    done = run(*HOROVOD, "--dry-run", script(TALK), timeout=SECONDS)
    server, *ranks = done.stdout.splitlines()

    with subprocess.Popen(["bash", "-c", f"exec {server}"]) as serving:
        processes = [
            subprocess.Popen(["bash", "-c", line], stdout=subprocess.PIPE, text=True)
            for line in ranks
        ]
        told = [process.communicate(timeout=SECONDS)[0] for process in processes]
        serving.send_signal(signal.SIGINT)
        assert serving.wait(SECONDS) == 0

    totals = [json.loads(text.splitlines()[-1])["total"] for text in told]
    assert totals == [[2.0, 1.0]] * 2


WAIT = """
import os
import horovod.tensorflow as hvd
import tensorflow as tf
hvd.init()
print("pid", os.getpid(), os.getppid(), flush=True)
if hvd.rank() == 1:
    hvd.allreduce(tf.constant(1.0), name="never")
import signal
signal.pause()
"""


def pids_of(process):
    """Return the numbers of all ranks and their guardians."""
    lines = [process.stdout.readline() for _ in range(2)]
    assert all("pid" in line for line in lines), lines
    return [int(word) for line in lines for word in line.split()[2:]]


def test_ctrl_c_in_a_collective_leaves_nothing_behind(script):
    with started(*HOROVOD, script(WAIT)) as process:
        pids = pids_of(process)
        process.send_signal(signal.SIGINT)

        assert process.wait(SECONDS) == 130
        assert_end(pids)
