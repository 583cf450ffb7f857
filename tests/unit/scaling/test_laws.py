"""Every law against numbers worked out by hand."""

import math

import pytest

from tfdist import scaling


def test_efficiency_is_the_ratio_of_the_rates_per_process():
    # A published run of Horovod: 66,176 examples/s on 1 GPU, 486,914 on 8.
    assert scaling.efficiency(486_914, 66_176, size=8) == pytest.approx(0.920, abs=5e-4)
    assert scaling.efficiency(400.0, 100.0, size=4) == 1.0


def test_weak_scaling_compares_steps_of_equal_batches():
    # One process 26.2 ms, two processes 39.5 ms.
    assert scaling.weak_scaling_efficiency(0.0395, 0.0262) == pytest.approx(
        0.663, abs=5e-4
    )


def test_strong_scaling_compares_a_step_with_its_part():
    # Perfect on 4 processes is a quarter of 80 ms, 20 ms; it takes 25 ms.
    assert scaling.strong_scaling_efficiency(0.025, 0.080, size=4) == pytest.approx(0.8)


def test_rates_and_step_times_agree_about_efficiency():
    # Weak: 64 examples each. Strong: 64 examples together.
    weak = scaling.efficiency(2 * 64 / 0.040, 64 / 0.030, size=2)
    strong = scaling.efficiency(64 / 0.020, 64 / 0.030, size=2)

    assert weak == pytest.approx(scaling.weak_scaling_efficiency(0.040, 0.030))
    assert strong == pytest.approx(scaling.strong_scaling_efficiency(0.020, 0.030, 2))


def test_waiting_share_is_what_the_step_alone_does_not_explain():
    assert scaling.waiting_share(0.0395, 0.0262) == pytest.approx(0.3367, abs=5e-5)


def test_noise_does_not_make_the_waiting_negative():
    assert scaling.waiting_share(0.0262, 0.0263) == 0.0


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        # 2 (n - 1) / n of 8 MiB in 13 ms: 0, 1, 4/3 and 3/2 times the tensor.
        (1, 0.0),
        (2, 645_277_538.5),
        (3, 860_370_051.3),
        (4, 967_916_307.7),
    ],
)
def test_bus_bandwidth_counts_what_a_link_carries(size, expected):
    found = scaling.bus_bandwidth(8 * 2**20, size=size, seconds=0.013)

    assert found == pytest.approx(expected)


def test_an_empty_tensor_has_no_bandwidth():
    assert scaling.bus_bandwidth(0, size=2, seconds=0.001) == 0.0


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda bad: scaling.efficiency(bad, 1.0, 2), "examples_per_second"),
        (lambda bad: scaling.efficiency(1.0, bad, 2), "alone_examples_per_second"),
        (lambda bad: scaling.weak_scaling_efficiency(bad, 1.0), "step_seconds"),
        (lambda bad: scaling.weak_scaling_efficiency(1.0, bad), "alone_step_seconds"),
        (lambda bad: scaling.strong_scaling_efficiency(bad, 1.0, 2), "step_seconds"),
        (lambda bad: scaling.waiting_share(1.0, bad), "alone_step_seconds"),
        (lambda bad: scaling.bus_bandwidth(1, 2, bad), "seconds"),
    ],
)
@pytest.mark.parametrize("bad", [0.0, -1.5, math.nan])
def test_what_no_measurement_gives_is_refused(call, name, bad):
    with pytest.raises(
        ValueError,
        match=rf"^{name} must be positive\. Received: {name}={bad}\. "
        r"Measure at least one whole step\.$",
    ):
        call(bad)


@pytest.mark.parametrize(
    "call",
    [
        lambda: scaling.efficiency(2.0, 1.0, size=0),
        lambda: scaling.strong_scaling_efficiency(2.0, 1.0, size=0),
        lambda: scaling.bus_bandwidth(1024, size=0, seconds=1.0),
    ],
)
def test_fewer_than_one_process_is_refused(call):
    with pytest.raises(
        ValueError,
        match=r"^size must be at least 1\. Received: size=0\. "
        r"Count the processes that train\.$",
    ):
        call()


def test_negative_bytes_are_refused():
    with pytest.raises(
        ValueError,
        match=r"^tensor_bytes must not be negative\. Received: tensor_bytes=-4\. "
        r"Multiply the number of elements by the bytes of one\.$",
    ):
        scaling.bus_bandwidth(-4, size=2, seconds=1.0)
