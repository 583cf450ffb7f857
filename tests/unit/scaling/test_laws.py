"""Every law against numbers worked out by hand; test_report has a published run."""

import math

import pytest

from tfdist.scaling import laws


@pytest.mark.parametrize(
    ("size", "expected"),
    # 2 (n - 1) / n of 8 MiB in 13 ms: 0, 1 and 3/2 times the tensor.
    [(1, 0.0), (2, 645_277_538.5), (4, 967_916_307.7)],
)
def test_bus_bandwidth(size, expected):
    found = laws.bus_bandwidth(8 * 2**20, size=size, seconds=0.013)

    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("law", "serial_fraction", "size", "expected"),
    [
        (laws.amdahl_speedup, 0.1, 9, 5.0),  # 1 / (0.1 + 0.9 / 9)
        (laws.amdahl_speedup, 0.25, 2.5, 1 / 0.55),
        (laws.amdahl_speedup, 0.3, 1, 1.0),
        (laws.gustafson_speedup, 0.25, 9, 7.0),  # 9 - 8 * 0.25
        (laws.gustafson_speedup, 0.2, 2.5, 2.2),  # 2.5 - 1.5 * 0.2
        (laws.gustafson_speedup, 1.0, 64, 1.0),
    ],
)
def test_laws(law, serial_fraction, size, expected):
    assert law(serial_fraction, size) == pytest.approx(expected)


def test_several_measurements_are_fitted_by_least_squares():
    speedups = {1: 1.0, 2: 1.6, 4: 2.0}

    # x = 1/2 and 1/4. Amdahl: 1/1.6 - 1/2 = 0.125 and 1/2 - 1/4 = 0.25 over 0.5 and
    # 0.75: (0.125 * 0.5 + 0.25 * 0.75) / (0.25 + 0.5625) = 0.25 / 0.8125.
    assert laws.fit_amdahl(speedups) == pytest.approx(0.25 / 0.8125)
    # Gustafson: 1 - 0.8 = 0.2 and 1 - 0.5 = 0.5 over the same: 0.475 / 0.8125.
    assert laws.fit_gustafson(speedups) == pytest.approx(0.475 / 0.8125)


@pytest.mark.parametrize("fit", [laws.fit_amdahl, laws.fit_gustafson])
@pytest.mark.parametrize(("speedup", "expected"), [(2.2, 0.0), (0.5, 1.0)])
def test_a_fraction_stays_between_0_and_1(fit, speedup, expected):
    assert fit({2: speedup}) == expected


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            lambda: laws.efficiency(0.0, 1.0, 2),
            "examples_per_second must be positive. Received: examples_per_second=0.0. "
            "Measure at least one whole step.",
        ),
        (
            lambda: laws.efficiency(1.0, math.nan, 2),
            "alone_examples_per_second must be positive. Received: alone_examples_per_",
        ),
        (lambda: laws.bus_bandwidth(1, 2, 0.0), "seconds must be positive. "),
        (
            lambda: laws.bus_bandwidth(-4, size=2, seconds=1.0),
            "tensor_bytes must not be negative. Received: tensor_bytes=-4. Multiply "
            "the number of elements by the bytes of one.",
        ),
        (
            lambda: laws.efficiency(2.0, 1.0, size=0),
            "size must be at least 1. Received: size=0. Count the processes that train",
        ),
        (lambda: laws.fit_amdahl({0.5: 1.0, 2: 1.5}), "size must be at least 1. "),
        (
            lambda: laws.amdahl_speedup(1.1, 2),
            "serial_fraction must be from 0 to 1. Received: serial_fraction=1.1. "
            "Divide the serial time by the whole.",
        ),
        (lambda: laws.gustafson_speedup(math.nan, 2), "serial_fraction must be fro"),
        (
            lambda: laws.fit_gustafson({1: 1.0}),
            "speedups must hold more than one process. Received: sizes [1]. Measure a "
            "run with at least two processes, too.",
        ),
        (
            lambda: laws.fit_amdahl({2: 0.0}),
            "speedups must be positive. Received: a speed-up of 0.0 on 2 processes. "
            "Divide the rate of all processes by that of one.",
        ),
    ],
)
def test_errors(call, error):
    with pytest.raises(ValueError, match=".") as raised:
        call()

    assert str(raised.value).startswith(error)
