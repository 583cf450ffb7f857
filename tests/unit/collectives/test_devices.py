import pytest
import tensorflow as tf

from tfdist.collectives.devices import use_own_gpu


@pytest.fixture
def chosen(monkeypatch):
    """What TensorFlow is asked to see; the host has the GPUs that a test says."""
    seen = []
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda device, kind: seen.append(device)
    )
    return seen


def host_with(monkeypatch, *gpus):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: list(gpus))


def test_each_process_takes_the_gpu_of_its_local_rank(monkeypatch, chosen):
    host_with(monkeypatch, "a", "b", "c")

    use_own_gpu(1, 2)

    assert chosen == ["b"]


@pytest.mark.parametrize("gpus", [[], ["a"]])
def test_a_process_keeps_what_was_chosen_for_it(monkeypatch, chosen, gpus):
    host_with(monkeypatch, *gpus)

    use_own_gpu(1, 2)

    assert chosen == []


def test_too_many_processes_are_refused(monkeypatch, chosen):
    host_with(monkeypatch, "a", "b")

    with pytest.raises(ValueError, match="Received: 3 processes and 2 GPUs"):
        use_own_gpu(0, 3)

    assert chosen == []
