import pytest
import tensorflow as tf

from tfdist.collectives.devices import use_own_gpu


class Host:
    """What TensorFlow is asked for; the host has the GPUs that a test says."""

    def __init__(self, monkeypatch):
        self.gpus, self.visible, self.growing = [], [], []
        monkeypatch.setattr(
            tf.config, "get_visible_devices", lambda kind: list(self.gpus)
        )
        monkeypatch.setattr(
            tf.config, "set_visible_devices", lambda gpus, kind: self.see(gpus)
        )
        monkeypatch.setattr(
            tf.config.experimental,
            "set_memory_growth",
            lambda gpu, enable: self.growing.append((gpu, enable)),
        )

    def see(self, gpus):
        self.visible.append(gpus)


@pytest.fixture
def host(monkeypatch):
    return Host(monkeypatch)


def test_each_process_takes_the_gpu_of_its_local_rank(host):
    host.gpus = ["a", "b", "c"]

    use_own_gpu(1, 2)

    assert host.visible == [["b"]]
    assert host.growing == [("b", True)]


def test_a_process_keeps_the_one_gpu_that_was_chosen_for_it(host):
    host.gpus = ["a"]

    use_own_gpu(1, 2)

    assert host.visible == []
    assert host.growing == [("a", True)]


def test_a_process_without_gpus_has_nothing_to_choose(host):
    use_own_gpu(1, 2)

    assert (host.visible, host.growing) == ([], [])


def test_too_many_processes_are_refused(host):
    host.gpus = ["a", "b"]

    with pytest.raises(ValueError, match="Received: 3 processes and 2 GPUs"):
        use_own_gpu(0, 3)

    assert host.visible == []


def test_gpus_that_have_started_cannot_be_chosen(host, monkeypatch):
    def see(gpus):
        raise RuntimeError("Visible devices cannot be modified")

    host.gpus = ["a", "b"]
    monkeypatch.setattr(host, "see", see)

    with pytest.raises(
        RuntimeError,
        match=r"before TensorFlow starts them\. Received: local_rank=1 in a TensorFlow "
        r"that has already started \(Visible devices .*\)\. Make the strategy first",
    ):
        use_own_gpu(1, 2)
