"""The transport between GPUs, as a table, and TensorFlow's word on what it takes."""

import os
import re
import subprocess
import sys

import pytest

from tfdist.collectives.tensorflow import choose_transport


@pytest.mark.parametrize(
    ("cards", "choice", "reason"),
    [
        ([[], []], "ring", ""),
        ([["a"], ["b"]], "nccl", ""),
        ([["a"], ["b"], ["c"], ["d"]], "nccl", ""),
        # Several GPUs in each process, as under MultiWorkerMirroredStrategy.
        ([["a", "b"], ["c", "d"]], "nccl", ""),
        ([["a", "b"]], "nccl", ""),
        ([["a"], ["a"]], "ring", "ranks 0 and 1 share a GPU"),
        ([["a"], ["b"], ["b"]], "ring", "ranks 1 and 2 share a GPU"),
        ([["a", "b"], ["b", "c"]], "ring", "ranks 0 and 1 share a GPU"),
        ([["a", "a"]], "ring", "rank 0 has split a GPU"),
        ([["a"], ["b", "b"]], "ring", "rank 1 has split a GPU"),
        ([["a"], []], "ring", "rank 1 has none"),
        ([[], ["a"], ["b"]], "ring", "rank 0 has none"),
    ],
)
def test_nccl_joins_ranks_whose_gpus_are_their_own(cards, choice, reason):
    assert choose_transport(cards) == (choice, reason)


PROGRAM = """
import tfdist

tfdist.devices.split("CPU:0", 2)
strategy = tfdist.strategies.MirroredStrategy()

import tensorflow as tf

@tf.function
def total():
    return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce(
        "SUM", tf.constant([1.0, 2.0])
    ))

print(strategy.experimental_local_results(total())[1].numpy().tolist())
"""


@pytest.mark.slow
def test_tensorflow_logs_a_ring_on_cpus_for_what_asks_for_nccl_on_gpus():
    # As a reader of docs/devices.md looks it up.
    log = {
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "collective_param_resolver_local=1",
    }

    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **log},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )

    assert ended.stdout.splitlines()[-1] == "[2.0, 4.0]"
    assert set(re.findall("AssignCollectiveType (.*)", ended.stderr)) == {"RingReduce"}
