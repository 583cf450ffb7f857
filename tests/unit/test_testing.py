"""The start of a cluster, with a double of the launcher.

Values, logs and failures of real processes: tests/distributed/test_testing_cluster.py.
"""

import pytest

from tfdist import testing
from tfdist.launching.result import Exit, RunResult
from tfdist.testing import cluster


def train():
    """Stand at the top of a module, as users' functions must."""


@pytest.fixture
def started(monkeypatch):
    """Return the processes and folders of each start, of which the last rank fails."""
    started = []

    def run(specs, *, output, timeout_seconds):
        started.append((specs, output.directory))
        for rank in (0, 1):
            (output.directory / f"rank.{rank}.log").write_bytes(b"log\xff\n")
        return RunResult((Exit(0, 0, 1.0), Exit(1, 3, 1.0)), "failed", failed_rank=1)

    monkeypatch.setattr(testing, "run", run)
    return started


def test_the_collective_reaches_the_job_and_the_folder_is_removed(started):
    for collective in ("horovod", "tensorflow"):
        result = cluster(train, collective=collective, check=False)
        assert (result.failed_rank, result.exit_codes) == (1, (0, 3))
        assert result.logs == ("log\ufffd\n",) * 2

    (horovod, folder), (own, _) = started
    assert horovod[1].env["HOROVOD_RANK"] == "1"
    assert "HOROVOD_RANK" not in own[1].env
    assert not folder.exists()


def test_targets_that_cannot_run():
    with pytest.raises(FileNotFoundError, match="The script to run does not exist"):
        cluster("missing.py")
    with pytest.raises(TypeError, match="a function or the path of a script"):
        cluster(3)
