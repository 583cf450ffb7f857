"""`tfdist run` in each of two pods: addresses of the loopback stand for them."""

import json
import subprocess
import sys

import pytest

from tfdist.launching.machine import free_ports

pytestmark = pytest.mark.slow

SECONDS = 1200
LAUNCH = """
import json, sys
from tfdist.cluster import Cluster, Task
from tfdist.launching.hosts import Pods
from tfdist.launching.job import Job
from tfdist.launching.restarts import Restarts
from tfdist.launching.runner import run_job
from tfdist_cli.run_report import end_lines, print_lines

pod, addresses, command = json.loads(sys.argv[1])
pods = Pods(Cluster(workers=tuple(addresses), task=Task("worker", pod)))
attempts = run_job(Job(tuple(command), size=2), hosts=pods)
print_lines(end_lines(Restarts(), attempts), is_json=False)
sys.exit(attempts[-1].result.exit_code)
"""
# What a strategy does first. TensorFlow itself would listen on all addresses of this
# machine, at ports that are the same in both pods.
MEET = """
from tfdist.cluster import detect
from tfdist.liveness.lifeline import monitor
from tfdist.rendezvous.roll_call import call_roll

cluster = detect()
lifeline = monitor(call_roll(cluster), print, 600.0)
print(lifeline.exchange("ranks", cluster.rank))
lifeline.leave()
"""


@pytest.fixture
def run_pods():
    """Return a function that starts a program in both pods and gives how they end."""
    port = min(free_ports(2))
    addresses = [f"127.0.0.2:{port}", f"127.0.0.3:{port}"]

    def run(*command):
        pods = [
            subprocess.Popen(
                [
                    *(sys.executable, "-c", LAUNCH),
                    json.dumps([pod, addresses, [sys.executable, *command]]),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for pod in range(2)
        ]
        printed = [pod.communicate(timeout=SECONDS) for pod in pods]
        return [
            (pod.returncode, *texts) for pod, texts in zip(pods, printed, strict=True)
        ]

    return run


def test_the_ranks_of_all_pods_reach_each_other(run_pods):
    first, second = run_pods("-c", MEET)

    assert first[0] == second[0] == 0, (first, second)
    assert "[0] [0, 1, 2, 3]\n" in first[1]
    assert "[3] [0, 1, 2, 3]\n" in second[1]
    assert "never met" not in first[2] + second[2]


def test_a_rank_that_fails_has_the_number_that_it_has_in_the_job(run_pods):
    code = "import os, sys; sys.exit(int(os.environ['TFDIST_RANK']) == 3)"
    first, second = run_pods("-c", code)

    assert (first[0], second[0]) == (0, 1)
    assert "tfdist run: rank 3 failed with exit code 1 after" in second[2]
