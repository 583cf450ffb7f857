"""Each formula against numbers worked out by hand, and against published runs."""

import pytest

from tfdist.estimate.costs import (
    Cost,
    Link,
    Ready,
    halving_and_doubling,
    recursive_doubling,
    ring,
    slowest,
    step_seconds,
)

# 0.1 ms a message, 1 GB/s.
LINK = Link(1e-4, 1e-9)
MB = 1e6


def cost(size_bytes):
    """One second a byte, of which a quarter needs the processor."""
    return Cost(processor=size_bytes / 4, network=size_bytes)


def test_times_of_an_all_reduce():
    # Six messages of 2 MB; two of 8 MB; four messages, and 1.5 times 8 MB.
    assert ring(8 * MB, 4, LINK) == pytest.approx(6 * (1e-4 + 2e-3))
    assert recursive_doubling(8 * MB, 4, LINK) == pytest.approx(2 * (1e-4 + 8e-3))
    assert halving_and_doubling(8 * MB, 4, LINK) == pytest.approx(4e-4 + 12e-3)
    # Two of six ranks give all to a neighbour first, and get the sum at the end.
    assert recursive_doubling(MB, 6, LINK) == pytest.approx(4 * (1e-4 + 1e-3))
    assert halving_and_doubling(MB, 6, LINK) == pytest.approx(6e-4 + 1.5e-3 + 2e-3)
    for alone in (ring, recursive_doubling, halving_and_doubling):
        assert alone(MB, 1, LINK) == 0.0


def test_a_message_during_the_step_costs_only_the_processor():
    messages = [Ready(2.0, 4.0), Ready(10.0, 4.0)]
    # The first ends at 6; the second begins at 11, delayed by 1 s, and ends at 15.
    assert step_seconds(10.0, messages, cost) == 15.0
    # Sent at 3 s, both are done before the step is.
    assert step_seconds(20.0, [Ready(2.0, 4.0), Ready(3.0, 4.0)], cost) == 22.0


def test_a_message_waits_for_the_one_before():
    assert step_seconds(10.0, [Ready(9.0, 8.0), Ready(10.0, 4.0)], cost) == 21.0


def test_messages_that_wait_can_be_sent_as_one():
    messages = [Ready(9.0, 8.0), Ready(10.0, 4.0), Ready(10.0, 4.0)]
    with_latency = lambda size: Cost(0.0, 1.0 + size)  # noqa: E731
    assert step_seconds(10.0, messages, with_latency) == 9 + 9 + 5 + 5
    assert step_seconds(10.0, messages, with_latency, fuses=True) == 9 + 9 + 9


def test_a_step_waits_for_what_it_needs_at_once():
    assert step_seconds(10.0, [Ready(5.0, 4.0, overlaps=False)], cost) == 14.0


def test_the_slowest_of_several_ranks():
    samples = [float(n) for n in range(101)]
    assert slowest(samples, 1) == 50.0
    # Two of two are below the median of the larger with probability 1/2: 0.707 each.
    assert slowest(samples, 2) == pytest.approx(70.71, abs=0.01)
    assert slowest(samples, 10**6) == pytest.approx(100.0, abs=0.01)
    assert slowest([3.0], 64) == 3.0


def buckets(count, size_bytes, first, last):
    """Return equal messages that are computed at equal distances."""
    distance = (last - first) / max(1, count - 1)
    return [Ready(first + n * distance, size_bytes / count) for n in range(count)]


def test_horovod_on_a_dgx_1_as_published():
    # A step of 1,024 images takes 1,024 / 66,176 s on one GPU; on eight, each has 2,048
    # and twice the time. 1.2 million weights, rings over NVLink at 20 GB/s and 10 us.
    alone = 2 * 1024 / 66_176
    nvlink = Link(10e-6, 1 / 20e9)
    messages = buckets(2, 4.8 * MB, 0.9 * alone, alone)
    seconds = step_seconds(alone, messages, lambda size: Cost(0, ring(size, 8, nvlink)))
    # Published: 486,914 images a second, and up to 516,328 in other epochs.
    assert 8 * 2048 / seconds / 486_914 == pytest.approx(1.08, abs=0.01)


def test_goyal_et_al_on_256_gpus_as_published():
    # 90 epochs of 1.28 million images take 29 h on 8 GPUs, 32 images each, and one hour
    # on 256. 100 MB of gradients are computed in the last 90 ms. Eight GPUs of a host
    # are joined by NVLink, 32 hosts by 50 Gbit/s.
    images = 90 * 1.28e6
    alone = 29 * 3600 / images * 256
    published = 3600 / images * 8192
    nvlink, ethernet = Link(10e-6, 1 / 20e9), Link(50e-6, 8 / 50e9)
    seconds = step_seconds(
        alone,
        buckets(4, 100 * MB, alone - 0.09, alone),
        # Within hosts first, as they did.
        lambda size: Cost(
            0, ring(size, 8, nvlink) + halving_and_doubling(size, 32, ethernet)
        ),
    )
    assert alone / published == pytest.approx(0.906, abs=0.001)
    # The paper's step has 10 % more than this; it names no jitter of the ranks.
    assert alone / seconds == pytest.approx(0.95, abs=0.01)
