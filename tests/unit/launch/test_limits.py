import pytest

from tfdist.launch.limits import Limits


def test_what_can_be_kept_passes():
    Limits().check()
    Limits(timeout_seconds=0.5, worker_restarts=0).check()


@pytest.mark.parametrize("seconds", [0, -1.5, float("nan")])
def test_a_timeout_must_be_positive(seconds):
    message = f"^timeout_seconds must be positive. Received: timeout_seconds={seconds}."
    with pytest.raises(ValueError, match=message):
        Limits(timeout_seconds=seconds).check()


def test_restarts_must_not_be_negative():
    message = "^restarts must not be negative. Received: restarts=-1. Use 0"
    with pytest.raises(ValueError, match=message):
        Limits(worker_restarts=-1).check()
