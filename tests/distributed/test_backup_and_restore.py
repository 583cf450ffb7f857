"""Jobs that are killed and started again end as if nothing had been."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from killed_training import EPOCHS

SCRIPT = Path(__file__).with_name("killed_training.py")
MAIN = (
    "import os; os.environ['LAUNCHER'] = str(os.getpid()); "
    "from tfdist_cli.main import main; exit(main())"
)
TFDIST = (sys.executable, "-c", MAIN, "run")


def started(folder, processes, kills, *stop, restarts=0, precision="mixed_float16"):
    """Run a job whose first starts are killed, and say how the last one ended."""
    folder.mkdir(exist_ok=True)
    (folder / "starts").unlink(missing_ok=True)
    program = [str(SCRIPT), str(folder), str(kills), precision, *stop]
    return subprocess.run(
        [*TFDIST, "-np", str(processes), f"--max-restarts={restarts}", *program],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


def ended(folder, processes, kills=0, precision="mixed_float16"):
    """Return what a job ended with, as often as it was killed, and what it has said."""
    done = started(folder, processes, kills, restarts=kills, precision=precision)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len((folder / "starts").read_text().splitlines()) == kills + 1
    with np.load(folder / "ended.npz") as arrays:
        return dict(arrays), done.stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return a function that gives what so many processes end with undisturbed."""

    @functools.cache
    def of(processes):
        return ended(tmp_path_factory.mktemp("right"), processes)[0]

    return of


@pytest.mark.parametrize(
    ("processes", "kills"),
    [
        pytest.param(1, 3, marks=pytest.mark.slow),
        (2, 1),
        pytest.param(2, 2, marks=pytest.mark.slow),
    ],
)
def test_killed_jobs_end_with_every_bit_of_an_undisturbed_one(
    undisturbed, tmp_path, processes, kills
):
    right = undisturbed(processes)
    found, said = ended(tmp_path / "killed", processes, kills)

    assert right.keys() == found.keys()
    assert [
        name for name in right if not np.array_equal(right[name], found[name])
    ] == []
    assert len(right["loss"]) == EPOCHS
    # The first of several may have been killed before there was a state.
    assert said.count("tfdist: goes on after ") >= max(kills - 1, 1)
    assert f"{kills} of {kills} restarts used" in said
    # Nothing is left of what was written, nor half of anything.
    left = {path.name for path in (tmp_path / "killed").iterdir()}
    assert left == {"best.weights.h5", "ended.npz", "starts"}


@pytest.mark.slow
def test_other_numbers_of_processes_go_on_to_the_same_weights(tmp_path):
    right, _ = ended(tmp_path / "right", 1, precision="float32")
    folder = tmp_path / "killed"
    for processes in (2, 3):
        assert started(folder, processes, 1, precision="float32").returncode != 0
    found, said = ended(folder, 1, precision="float32")

    assert "tfdist: goes on after " in said
    assert right.keys() == found.keys()
    for name, value in right.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_signals_stop_all_ranks_after_a_saved_step(undisturbed, tmp_path):
    right = undisturbed(2)
    folder = tmp_path / "stopped"
    steps = []
    for name in ("SIGTERM", "SIGUSR1"):
        done = started(folder, 2, 1, name)
        assert done.returncode == 143, done.stderr[-3000:]
        # With save_freq=100, no step of the 60 is saved for another reason.
        said = re.findall(r"tfdist: .*: stopped after (\d+) steps, ", done.stderr)
        # The launcher repeats the last lines of the first rank that ended.
        (made,) = set(said)
        steps.append(int(made))
    found, said = ended(folder, 2)

    # One rank may have begun the next step.
    assert steps[0] in (13, 14)
    assert steps[1] - steps[0] in (13, 14)
    assert f"tfdist: goes on after {steps[1]} steps, " in said
    assert {n for n in right if not np.array_equal(right[n], found[n])} == set()
