"""Every law against numbers worked out by hand; test_report has a published run."""

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
