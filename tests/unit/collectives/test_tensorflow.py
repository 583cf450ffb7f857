"""What `TensorFlowCollective` does before it connects; the rest needs processes."""

import pytest
import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.collectives import TensorFlowCollective

HOSTS = ("a:1", "b:1", "b:2", "b:3")


def test_a_tensorflow_that_has_started_is_refused():
    tf.constant(1)

    with pytest.raises(RuntimeError, match="before TensorFlow runs its first operatio"):
        TensorFlowCollective(Cluster(workers=HOSTS))


def test_more_processes_on_a_host_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("tfdist.compat.tensorflow.check_not_started", lambda: None)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["0", "1"])

    with pytest.raises(
        ValueError, match=r"Received: 3 processes and 2 GPUs\. Start at"
    ):
        TensorFlowCollective(Cluster(workers=HOSTS, task=Task("worker", 2)))


def test_each_process_on_a_host_takes_a_gpu_of_its_own(monkeypatch):
    class Called(Exception):
        pass

    def call_roll(*args, **options):
        raise Called

    chosen = []
    monkeypatch.setattr("tfdist.compat.tensorflow.check_not_started", lambda: None)
    monkeypatch.setattr("tfdist.collectives.tensorflow.call_roll", call_roll)
    monkeypatch.setattr(
        "tfdist.collectives.tensorflow.pin", lambda *place: chosen.append(place)
    )

    with pytest.raises(Called):
        TensorFlowCollective(Cluster(workers=HOSTS, task=Task("worker", 2)))

    assert chosen == [(1, 3)]
