import pytest

from tfdist.devices import limit_memory, physical, pin


def visible(host):
    return [gpu.name[-5:] for gpu in host.get_visible("GPU")]


def test_each_process_takes_the_gpu_of_its_local_rank(host):
    host.has(gpus=3)

    assert pin(1, 2) == "GPU:0"

    assert visible(host) == ["GPU:1"]
    assert host.growing == [("/physical_device:GPU:1", True)]


def test_the_local_rank_is_that_of_the_process(host, monkeypatch):
    host.has(gpus=3)
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"worker": ["a:1", "b:1", "b:2"]},'
        ' "task": {"type": "worker", "index": 2}}',
    )

    pin()

    assert visible(host) == ["GPU:1"]


def test_a_process_keeps_the_one_gpu_that_was_chosen_for_it(host):
    host.has(gpus=1)
    host.set_visible = None

    assert pin(1, 2) == "GPU:0"
    assert host.growing == [("/physical_device:GPU:0", True)]


def test_to_pin_twice_is_to_pin_once(host):
    host.has(gpus=3)

    assert pin(1, 2) == pin(1, 2)
    assert visible(host) == ["GPU:1"]


def test_memory_that_was_limited_stays_so(host):
    host.has(gpus=2)
    for gpu in physical("GPU"):
        limit_memory(gpu, 1024)

    pin(1, 2)

    assert (visible(host), host.growing) == (["GPU:1"], [])


def test_a_process_without_gpus_has_nothing_to_choose(host):
    assert pin(1, 2) is None
    assert host.growing == []


def test_too_many_processes_are_refused(host):
    host.has(gpus=2)

    with pytest.raises(ValueError, match="Received: 3 processes and 2 GPUs"):
        pin(0, 3)

    assert visible(host) == ["GPU:0", "GPU:1"]


@pytest.mark.parametrize("local_rank", [-1, 2])
def test_a_rank_that_is_not_on_the_host_is_refused(host, local_rank):
    host.has(gpus=3)

    with pytest.raises(ValueError, match=rf"local_rank={local_rank}, local_size=2\."):
        pin(local_rank, 2)


def test_gpus_that_have_started_cannot_be_chosen(host):
    host.has(gpus=2)
    host.has_started = True

    with pytest.raises(
        RuntimeError,
        match=r"its GPU before TensorFlow starts its devices\. Received: local_rank=1",
    ):
        pin(1, 2)
