"""Loading Horovod and adding up; what runs is pretended."""

import pytest

from tfdist.horovod_build import report as trial
from tfdist.horovod_build.installed import BuildError
from tfdist.horovod_build.report import Ended

BOTH = "[0]<stdout>:tfdist-trial 0 2 3.0 3.0\n[1]<stdout>:tfdist-trial 1 2 3.0 3.0\n"
# The tag of an empty line follows without a line break.
BOTH_OF_MPIRUN = """\
[1,1]<stdout>:tfdist-trial 1 2 3.0 3.0[1,1]<stdout>:
[1,0]<stdout>:tfdist-trial 0 2 3.0 3.0[1,0]<stdout>:
"""


class FakeChild:
    """Remembers what it is to run, and answers as told."""

    def __init__(self):
        self.answer = Ended(0, BOTH)

    def __call__(self, command, env, *, timeout_seconds):
        self.command, self.env = command, env
        return self.answer


@pytest.fixture(autouse=True)
def child(monkeypatch):
    fake = FakeChild()
    monkeypatch.setattr(trial, "run_child", fake)
    return fake


def test_what_is_built_in(child):
    child.answer = Ended(0, 'I0000 chatter\n\ntfdist-probe ["gloo", "mpi"]\n')

    assert trial.probe({"A": "b", "CUDA_VISIBLE_DEVICES": "0"}) == ("gloo", "mpi")
    assert child.env["A"] == "b"
    assert child.env["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("answer", "received"),
    [
        (Ended(1, "OSError: undefined symbol: _ZN\n"), "Received: exit code 1."),
        (Ended(None, ""), "Received: no result within 120 s."),
        (Ended(0, ""), "Received: another result"),
    ],
)
def test_a_horovod_that_does_not_load(child, answer, received):
    child.answer = answer

    with pytest.raises(BuildError, match=received) as raised:
        trial.probe({})
    assert "tfdist horovod install --force" in str(raised.value)
    assert str(raised.value).endswith(answer.last_lines())
    assert raised.value.exit_code == 1


@pytest.mark.parametrize(
    ("parts", "controller"), [(("gloo", "mpi"), "gloo"), (("mpi",), "mpi")]
)
def test_two_processes_meet_by_what_is_built_in(child, parts, controller):
    assert trial.try_all_reduce(parts, {}) == controller
    assert f"--{controller}" in child.command


@pytest.mark.parametrize(
    ("parts", "answer", "error"),
    [
        (("gloo",), Ended(1, "timed out"), "on Gloo. .*exit code 1. .*GLOO_IFACE=lo"),
        (("gloo",), Ended(None, ""), "no result within 180 s"),
        (("gloo",), Ended(0, BOTH.replace("3.0", "2.0")), "another result than"),
        (("mpi",), Ended(1, ""), "on MPI. .*mpirun -np 2 hostname"),
    ],
)
def test_an_all_reduce_that_fails(child, parts, answer, error):
    child.answer = answer

    with pytest.raises(BuildError, match=error):
        trial.try_all_reduce(parts, {})


@pytest.mark.parametrize(
    ("output", "right"),
    [
        (BOTH, True),
        (BOTH_OF_MPIRUN, True),
        (BOTH.splitlines()[0], False),
        (BOTH.replace("1 2 3.0", "1 1 2.0"), False),
        ("", False),
    ],
)
def test_both_must_report_the_sum(output, right):
    assert trial.is_right(output) is right
