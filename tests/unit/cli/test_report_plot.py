"""The curve, read back from the axes that it is drawn on."""

import pytest
from matplotlib.figure import Figure

from tfdist.scaling import EpochRate, Run, scaling_report
from tfdist_cli.report_plot import draw


@pytest.fixture
def axes(monkeypatch, tmp_path):
    """Return what draws rates by the number of processes, and gives the axes."""
    saved = []
    original = Figure.savefig

    def savefig(figure, *arguments, **options):
        saved.append(figure)
        original(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)

    def axes(rates, model=None):
        runs = {
            f"{n}.json": Run(n, (EpochRate(rate),), model=model)
            for n, rate in rates.items()
        }
        draw(scaling_report(runs), tmp_path / "scaling.svg")
        assert (tmp_path / "scaling.svg").stat().st_size > 0
        return saved[-1].axes[0]

    return axes


def curves(axes):
    """Return the points of each curve, by its label."""
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


def test_what_was_measured_and_what_the_laws_say(axes):
    drawn = axes({1: 100.0, 2: 160.0}, model="digits")

    # (1 / 1.6 - 1 / 2) / (1 / 2) and (1 - 0.8) / (1 / 2); at 64:
    # 1 / (0.25 + 0.75 / 64) and 64 - 63 * 0.4.
    found = curves(drawn)
    assert found["measured"].tolist() == [[1.0, 1.0], [2.0, 1.6]]
    ends = {label: points[-1].tolist() for label, points in found.items()}
    assert ends["perfect"] == pytest.approx([64.0, 64.0])
    assert ends["Amdahl, serial fraction 0.2500"] == pytest.approx([64.0, 3.820896])
    assert ends["Gustafson, serial fraction 0.4000"] == pytest.approx([64.0, 38.8])
    assert drawn.get_title() == "Scaling of digits"
    assert drawn.get_ylabel() == "speed-up against one process"


def test_from_the_smallest_run_to_beyond_the_largest(axes):
    drawn = axes({4: 400.0, 32: 1600.0})

    perfect = curves(drawn)["perfect"]
    assert perfect[0].tolist() == [4.0, 1.0]
    assert perfect[-1].tolist() == pytest.approx([128.0, 32.0])
    assert drawn.get_title() == "Scaling"
    assert drawn.get_ylabel() == "speed-up against 4 processes"


def test_one_number_of_processes_has_no_laws(axes):
    assert set(curves(axes({2: 100.0}))) == {"perfect", "measured"}
