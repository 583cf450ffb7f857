"""Every law against numbers worked out by hand."""

import math

import pytest

from tfdist import scaling

# A published run of Horovod on a DGX-1: 66,176 examples/s on 1 GPU, 486,914 on 8.
DGX_1 = {8: 486_914 / 66_176}


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


@pytest.mark.parametrize(
    ("serial_fraction", "size", "expected"),
    [
        (0.1, 9, 5.0),  # 1 / (0.1 + 0.9 / 9)
        (0.05, 20, 10.25641),  # 1 / (0.05 + 0.95 / 20) = 1 / 0.0975
        (0.25, 2.5, 1.818182),  # 1 / (0.25 + 0.75 / 2.5) = 1 / 0.55
        (0.3, 1, 1.0),
        (0.0, 64, 64.0),
        (1.0, 64, 1.0),
    ],
)
def test_amdahl(serial_fraction, size, expected):
    found = scaling.amdahl_speedup(serial_fraction, size)

    assert found == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize(
    ("serial_fraction", "size", "expected"),
    [
        (0.25, 9, 7.0),  # 9 - 8 * 0.25
        (0.004, 1024, 1019.908),  # 1024 - 1023 * 0.004
        (0.2, 2.5, 2.2),  # 2.5 - 1.5 * 0.2
        (0.3, 1, 1.0),
        (0.0, 64, 64.0),
        (1.0, 64, 1.0),
    ],
)
def test_gustafson(serial_fraction, size, expected):
    found = scaling.gustafson_speedup(serial_fraction, size)

    assert found == pytest.approx(expected)


def test_one_measurement_gives_the_metric_of_karp_and_flatt():
    # (1 / 7.3579 - 1 / 8) / (1 - 1 / 8) = (0.135909 - 0.125) / 0.875
    fraction = scaling.fit_amdahl(DGX_1)

    assert fraction == pytest.approx(0.012467, abs=1e-6)
    assert scaling.amdahl_speedup(fraction, 8) == pytest.approx(DGX_1[8])
    # 1 / (0.012467 + 0.987533 / 64), and / 1024
    assert scaling.amdahl_speedup(fraction, 64) == pytest.approx(35.85, abs=0.01)
    assert scaling.amdahl_speedup(fraction, 1024) == pytest.approx(74.45, abs=0.01)


def test_one_measurement_solves_gustafsons_law():
    # (8 - 7.357864) / 7
    fraction = scaling.fit_gustafson(DGX_1)

    assert fraction == pytest.approx(0.091734, abs=1e-6)
    assert scaling.gustafson_speedup(fraction, 8) == pytest.approx(DGX_1[8])
    # 64 - 63 * 0.091734, and 1024 - 1023 * 0.091734
    assert scaling.gustafson_speedup(fraction, 64) == pytest.approx(58.22, abs=0.01)
    assert scaling.gustafson_speedup(fraction, 1024) == pytest.approx(930.16, abs=0.01)


def test_several_measurements_are_fitted_by_least_squares():
    speedups = {1: 1.0, 2: 1.6, 4: 2.0}

    # x = 1/2 and 1/4. Amdahl: 1/1.6 - 1/2 = 0.125 and 1/2 - 1/4 = 0.25 over 0.5 and
    # 0.75: (0.125 * 0.5 + 0.25 * 0.75) / (0.25 + 0.5625) = 0.25 / 0.8125.
    assert scaling.fit_amdahl(speedups) == pytest.approx(0.25 / 0.8125)
    # Gustafson: 1 - 0.8 = 0.2 and 1 - 0.5 = 0.5 over the same: 0.475 / 0.8125.
    assert scaling.fit_gustafson(speedups) == pytest.approx(0.475 / 0.8125)


@pytest.mark.parametrize(
    ("fit", "law", "error"),
    [
        (scaling.fit_amdahl, scaling.amdahl_speedup, lambda n, s, t: 1 / s - 1 / t),
        (scaling.fit_gustafson, scaling.gustafson_speedup, lambda n, s, t: (s - t) / n),
    ],
)
def test_no_other_fraction_is_nearer(fit, law, error):
    speedups = {2: 1.9, 4: 3.1, 8: 5.5}

    def errors(fraction):
        return sum(error(n, s, law(fraction, n)) ** 2 for n, s in speedups.items())

    best = fit(speedups)
    assert errors(best) < min(errors(best - 0.001), errors(best + 0.001))


@pytest.mark.parametrize("fit", [scaling.fit_amdahl, scaling.fit_gustafson])
@pytest.mark.parametrize(("speedup", "expected"), [(2.2, 0.0), (0.5, 1.0)])
def test_a_fraction_stays_between_0_and_1(fit, speedup, expected):
    assert fit({2: speedup}) == expected


@pytest.mark.parametrize("law", [scaling.amdahl_speedup, scaling.gustafson_speedup])
@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_what_is_no_fraction_is_refused(law, bad):
    with pytest.raises(
        ValueError,
        match=rf"^serial_fraction must be from 0 to 1\. Received: serial_fraction={bad}"
        r"\. Divide the serial time by the whole\.$",
    ):
        law(bad, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: scaling.amdahl_speedup(0.5, 0.5),
        lambda: scaling.gustafson_speedup(0.5, 0.5),
        lambda: scaling.fit_amdahl({0.5: 1.0, 2: 1.5}),
    ],
)
def test_less_than_one_process_is_refused(call):
    with pytest.raises(
        ValueError,
        match=r"^size must be at least 1\. Received: size=0\.5\. "
        r"Count the processes that train\.$",
    ):
        call()


@pytest.mark.parametrize("fit", [scaling.fit_amdahl, scaling.fit_gustafson])
def test_a_fit_needs_more_than_one_process(fit):
    with pytest.raises(
        ValueError,
        match=r"^speedups must hold more than one process\. Received: sizes \[1\]\. "
        r"Measure a run with at least two processes, too\.$",
    ):
        fit({1: 1.0})


@pytest.mark.parametrize("bad", [0.0, math.nan])
def test_a_fit_needs_positive_speedups(bad):
    with pytest.raises(
        ValueError,
        match=rf"^speedups must be positive\. Received: a speed-up of {bad} on 2 "
        r"processes\. Divide the rate of all processes by that of one\.$",
    ):
        scaling.fit_amdahl({2: bad})
