"""TensorFlow's collective before it connects."""

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.collectives.tensorflow import TensorFlowCollective


def test_each_process_on_a_host_takes_a_gpu_of_its_own(monkeypatch):
    class Pinned(Exception):
        """Ends the start before it calls other processes."""

    def pin(*place):
        raise Pinned(place)

    functions = {
        "tfdist.compat.tensorflow.check_not_started": lambda: None,
        "tfdist.collectives.tensorflow.pin": pin,
    }
    for name, function in functions.items():
        monkeypatch.setattr(name, function)
    hosts = ("a:1", "b:1", "b:2", "b:3")

    with pytest.raises(Pinned, match=r"\(1, 3\)"):
        TensorFlowCollective(Cluster(workers=hosts, task=Task("worker", 2)))
