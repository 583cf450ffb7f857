"""Every law against numbers worked out by hand."""

import math

import pytest

from tfdist import scaling

# A published run of Horovod on a DGX-1: 66,176 examples/s on 1 GPU, 486,914 on 8.
DGX_1 = {8: 486_914 / 66_176}


def test_efficiency_of_rates_and_of_step_times():
    assert scaling.efficiency(486_914, 66_176, size=8) == pytest.approx(0.920, abs=5e-4)
    # One process 26.2 ms, two processes 39.5 ms.
    weak = scaling.weak_scaling_efficiency(0.0395, 0.0262)
    assert weak == pytest.approx(0.663, abs=5e-4)
    assert weak == pytest.approx(scaling.efficiency(128 / 0.0395, 64 / 0.0262, size=2))
    # Perfect on 4 processes is a quarter of 80 ms, 20 ms; it takes 25 ms.
    assert scaling.strong_scaling_efficiency(0.025, 0.080, size=4) == pytest.approx(0.8)


def test_the_waiting_share_is_never_negative():
    assert scaling.waiting_share(0.0395, 0.0262) == pytest.approx(0.3367, abs=5e-5)
    assert scaling.waiting_share(0.0262, 0.0263) == 0.0


@pytest.mark.parametrize(
    ("size", "expected"),
    # 2 (n - 1) / n of 8 MiB in 13 ms: 0, 1 and 3/2 times the tensor.
    [(1, 0.0), (2, 645_277_538.5), (4, 967_916_307.7)],
)
def test_bus_bandwidth(size, expected):
    found = scaling.bus_bandwidth(8 * 2**20, size=size, seconds=0.013)

    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("law", "serial_fraction", "size", "expected"),
    [
        (scaling.amdahl_speedup, 0.1, 9, 5.0),  # 1 / (0.1 + 0.9 / 9)
        (scaling.amdahl_speedup, 0.25, 2.5, 1 / 0.55),
        (scaling.amdahl_speedup, 0.3, 1, 1.0),
        (scaling.gustafson_speedup, 0.25, 9, 7.0),  # 9 - 8 * 0.25
        (scaling.gustafson_speedup, 0.2, 2.5, 2.2),  # 2.5 - 1.5 * 0.2
        (scaling.gustafson_speedup, 1.0, 64, 1.0),
    ],
)
def test_laws(law, serial_fraction, size, expected):
    assert law(serial_fraction, size) == pytest.approx(expected)


def test_one_measurement_solves_each_law():
    # (1 / 7.3579 - 1 / 8) / (1 - 1 / 8) = (0.135909 - 0.125) / 0.875
    fraction = scaling.fit_amdahl(DGX_1)
    assert fraction == pytest.approx(0.012467, abs=1e-6)
    assert scaling.amdahl_speedup(fraction, 8) == pytest.approx(DGX_1[8])
    # (8 - 7.357864) / 7
    fraction = scaling.fit_gustafson(DGX_1)
    assert fraction == pytest.approx(0.091734, abs=1e-6)
    assert scaling.gustafson_speedup(fraction, 8) == pytest.approx(DGX_1[8])


def test_several_measurements_are_fitted_by_least_squares():
    speedups = {1: 1.0, 2: 1.6, 4: 2.0}

    # x = 1/2 and 1/4. Amdahl: 1/1.6 - 1/2 = 0.125 and 1/2 - 1/4 = 0.25 over 0.5 and
    # 0.75: (0.125 * 0.5 + 0.25 * 0.75) / (0.25 + 0.5625) = 0.25 / 0.8125.
    assert scaling.fit_amdahl(speedups) == pytest.approx(0.25 / 0.8125)
    # Gustafson: 1 - 0.8 = 0.2 and 1 - 0.5 = 0.5 over the same: 0.475 / 0.8125.
    assert scaling.fit_gustafson(speedups) == pytest.approx(0.475 / 0.8125)


@pytest.mark.parametrize("fit", [scaling.fit_amdahl, scaling.fit_gustafson])
@pytest.mark.parametrize(("speedup", "expected"), [(2.2, 0.0), (0.5, 1.0)])
def test_a_fraction_stays_between_0_and_1(fit, speedup, expected):
    assert fit({2: speedup}) == expected


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            lambda: scaling.efficiency(0.0, 1.0, 2),
            "examples_per_second must be positive. Received: examples_per_second=0.0. "
            "Measure at least one whole step.",
        ),
        (
            lambda: scaling.weak_scaling_efficiency(1.0, math.nan),
            "alone_step_seconds must be positive. Received: alone_step_seconds=nan. ",
        ),
        (
            lambda: scaling.waiting_share(-1.5, 1.0),
            "step_seconds must be positive. Received: step_seconds=-1.5. ",
        ),
        (lambda: scaling.bus_bandwidth(1, 2, 0.0), "seconds must be positive. "),
        (
            lambda: scaling.bus_bandwidth(-4, size=2, seconds=1.0),
            "tensor_bytes must not be negative. Received: tensor_bytes=-4. Multiply "
            "the number of elements by the bytes of one.",
        ),
        (
            lambda: scaling.strong_scaling_efficiency(2.0, 1.0, size=0),
            "size must be at least 1. Received: size=0. Count the processes that train",
        ),
        (lambda: scaling.efficiency(2.0, 1.0, size=0), "size must be at least 1. "),
        (lambda: scaling.fit_amdahl({0.5: 1.0, 2: 1.5}), "size must be at least 1. "),
        (
            lambda: scaling.amdahl_speedup(1.1, 2),
            "serial_fraction must be from 0 to 1. Received: serial_fraction=1.1. "
            "Divide the serial time by the whole.",
        ),
        (lambda: scaling.gustafson_speedup(math.nan, 2), "serial_fraction must be fro"),
        (
            lambda: scaling.fit_gustafson({1: 1.0}),
            "speedups must hold more than one process. Received: sizes [1]. Measure a "
            "run with at least two processes, too.",
        ),
        (
            lambda: scaling.fit_amdahl({2: 0.0}),
            "speedups must be positive. Received: a speed-up of 0.0 on 2 processes. "
            "Divide the rate of all processes by that of one.",
        ),
    ],
)
def test_errors(call, error):
    with pytest.raises(ValueError, match=".") as raised:
        call()

    assert str(raised.value).startswith(error)
