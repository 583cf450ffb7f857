"""Backup workers: a training in step is still that of one process."""

import signal

import pytest
from equality_comparison import differences
from equality_matrix import TOLERANCES
from parameter_server_jobs import run, run_rows, succeeded
from test_parameter_server_faults import SILENCE_SECONDS, disturbed, signals_at

from tfdist.strategies.parameter_server import servers

pytestmark = pytest.mark.slow


def lost_by(number):
    """Return a row of a training in whose midst a worker gets a signal."""
    # Once: nobody waits for it to come back.
    return disturbed(signals_at((20, number), tasks=["worker 1"]))


ROWS = {
    "undisturbed": disturbed(tuple),
    "killed": lost_by(signal.SIGKILL),
    "hung": lost_by(signal.SIGSTOP),
}


def run_alone():
    return run_rows(ROWS, ["undisturbed"])


def run_with_backup():
    servers.SILENCE_SECONDS = SILENCE_SECONDS
    return run_rows(ROWS, ROWS, consistency="sync", backup_workers=1)


@pytest.fixture(scope="module")
def alone():
    return run(run_alone, workers=None)


@pytest.fixture(scope="module")
def with_backup():
    return run(run_with_backup, workers=3, ps=2, timeout_seconds=300)


@pytest.mark.parametrize("row", ROWS)
def test_workers_that_nobody_waits_for_change_no_weight(alone, with_backup, row):
    right = succeeded(alone, "undisturbed")

    wrong = differences(succeeded(with_backup, row), right, TOLERANCES[right["floatx"]])

    assert wrong == []
