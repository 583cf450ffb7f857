"""The report against tables worked out by hand."""

import pytest

from tfdist.scaling.report import scaling_report
from tfdist.scaling.throughput import EpochRate, Run


def run(processes, rate, batch=None, **options):
    return Run(processes, (EpochRate(rate),), global_batch_size=batch, **options)


def report(*runs):
    return scaling_report({f"{i}.json": one for i, one in enumerate(runs)})


def column(found, name):
    return [getattr(row, name) for row in found.rows]


def test_a_published_run_on_a_dgx_1():
    found = report(run(8, 486_914.0), run(1, 66_176.0))

    assert column(found, "processes") == [1, 8]
    assert column(found, "examples_per_second") == [66_176.0, 486_914.0]
    # 486,914 / 66,176 = 7.3579, of 8: 0.9197. The source says 7.3 and "about 91 %".
    assert column(found, "speedup") == pytest.approx([1.0, 7.3579], abs=5e-5)
    assert column(found, "efficiency") == pytest.approx([1.0, 0.9197], abs=5e-5)
    # (1 / 7.357864 - 1 / 8) / (7 / 8), and its inverse.
    assert found.amdahl.serial_fraction == pytest.approx(0.012467, abs=1e-6)
    assert found.amdahl.limit == pytest.approx(80.21, abs=0.01)
    assert found.amdahl.speedups == pytest.approx(
        {8: 7.358, 64: 35.845, 1024: 74.450}, abs=1e-3
    )
    # (8 - 7.357864) / 7, and n - (n - 1) * 0.091734.
    assert found.gustafson.serial_fraction == pytest.approx(0.091734, abs=1e-6)
    assert found.gustafson.limit is None
    assert found.gustafson.speedups == pytest.approx(
        {8: 7.358, 64: 58.221, 1024: 930.156}, abs=1e-3
    )


def test_perfect_scaling_has_no_limit():
    found = report(run(1, 100.0), run(2, 200.0))

    assert found.amdahl.serial_fraction == 0.0
    assert found.amdahl.limit is None
    assert (
        found.amdahl.speedups == found.gustafson.speedups == {8: 8, 64: 64, 1024: 1024}
    )


def test_what_never_gets_faster_is_limited_by_both_laws():
    found = report(run(1, 100.0), run(2, 100.0))

    assert found.amdahl.limit == found.gustafson.limit == 1.0


def test_without_one_process_the_smallest_run_is_the_unit():
    found = report(run(4, 400.0), run(16, 800.0))

    assert found.base == 4
    # Twice as fast on four times as many: (1/2 - 1/4) / (3/4) and (1 - 1/2) / (3/4).
    assert column(found, "speedup") == [1.0, 2.0]
    assert column(found, "efficiency") == [1.0, 0.5]
    assert found.amdahl.serial_fraction == pytest.approx(1 / 3)
    assert found.gustafson.serial_fraction == pytest.approx(2 / 3)
    assert report(run(8, 1.0), run(16, 2.0)).amdahl.speedups.keys() == {64, 1024}
    # 8 processes are 2 units: 1 / (1/3 + 1/3) and 2 - 2/3.
    assert found.amdahl.speedups[8] == pytest.approx(1.5)
    assert found.gustafson.speedups[8] == pytest.approx(4 / 3)


def test_several_runs_on_as_many_processes_count_by_their_median():
    found = report(run(1, 100.0), run(2, 150.0), run(2, 10.0), run(2, 160.0))

    assert column(found, "runs") == [1, 3]
    assert column(found, "speedup") == [1.0, 1.5]


def test_one_number_of_processes_has_no_laws():
    found = report(run(2, 100.0, 64), run(2, 110.0, 64))

    assert column(found, "examples_per_second") == [105.0]
    assert (found.amdahl, found.gustafson, found.scaling) == (None, None, "unknown")


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ((64, 64, 64), "strong"),
        ((64, 128, 192), "weak"),
        ((64, 128, 128), "mixed"),
        ((64, None, 64), "unknown"),
    ],
)
def test_the_batches_tell_strong_from_weak_scaling(batches, expected):
    runs = [run(n, 100.0, batch) for n, batch in enumerate(batches, start=1)]

    assert report(*runs).scaling == expected


def test_what_only_some_files_know_is_taken_from_them():
    found = report(run(1, 100.0), run(2, 150.0, 64, model="a"), run(2, 160.0))

    assert found.model == "a"
    assert column(found, "global_batch_size") == [None, 64]


def test_units_are_those_of_all_runs():
    tokens = {"units_per_example": {"tokens": 512}}
    others = {"units_per_example": {"tokens": 256}}

    assert report(run(1, 1.0, **tokens), run(2, 2.0, **tokens)).units_per_example == {
        "tokens": 512
    }
    assert report(run(1, 1.0, **tokens), run(2, 2.0, **others)).units_per_example == {}


def test_versions_are_named_where_they_differ():
    old = {"versions": {"keras": "3.14.0", "tfdist": "0.1.0"}}
    new = {"versions": {"keras": "3.15.1", "tfdist": "0.1.0"}}

    found = report(run(1, 1.0, **new), run(2, 2.0, **old), run(4, 4.0))

    assert found.versions == {"keras": ["3.14.0", "3.15.1"]}


def test_several_models_are_refused():
    with pytest.raises(
        ValueError,
        match=r"^Runs that are compared must have the same model\. "
        r"Received: 'a' in 0\.json, 'b' in 2\.json\. Make a report for each\.$",
    ):
        report(run(1, 1.0, model="a"), run(2, 2.0), run(4, 4.0, model="b"))


def test_several_batches_on_as_many_processes_are_refused():
    with pytest.raises(
        ValueError,
        match=r"^Runs that are compared must have the same global batch size where "
        r"both have 2 processes\. Received: 64 in 1\.json, 128 in 2\.json\. "
        r"Make a report for each\.$",
    ):
        report(run(1, 1.0, 64), run(2, 2.0, 64), run(2, 2.0, 128))
