"""Both laws, and their fits, against numbers worked out by hand."""

import math

import pytest

from tfdist import scaling

# A published run of Horovod on a DGX-1: 66,176 examples/s on 1 GPU, 486,914 on 8.
DGX_1 = {8: 486_914 / 66_176}


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
