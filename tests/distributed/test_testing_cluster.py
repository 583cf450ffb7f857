"""`tfdist.testing.cluster` with real processes."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tfdist import rank
from tfdist.testing import ClusterError, cluster

pytestmark = [pytest.mark.new_processes, pytest.mark.slow]

SECONDS = 600


@dataclass
class Point:
    """A class of a file that cannot be imported by its name."""

    x: int
    y: np.ndarray


def add(point, number):
    print("adding on", rank())
    return Point(point.x + number, point.y * rank())


def environment(name):
    return os.environ[name]


def fail_on_one(folder):
    print("before")
    here = Path(folder, "here")
    if rank() == 1:
        while not here.exists():
            threading.Event().wait(0.05)
        raise ValueError("bad weather")
    here.touch()
    signal.pause()


def kill_on_one():
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def wait_on_zero():
    print("waiting" if rank() == 0 else "done")
    if rank() == 0:
        signal.pause()
    return "value"


def leave():
    sys.exit(4)


def test_arguments_and_values_may_hold_arrays_and_classes_of_the_test():
    point = Point(1, np.arange(3.0))

    result = cluster(add, args=(point, 5), timeout_seconds=SECONDS)

    assert result.exit_codes == (0, 0)
    assert [type(value) for value in result.values] == [Point, Point]
    assert [value.x for value in result.values] == [6, 6]
    np.testing.assert_array_equal(result.values[1].y, [0, 1, 2])
    np.testing.assert_array_equal(result.values[0].y, [0, 0, 0])
    assert result.logs == ("adding on 0\n", "adding on 1\n")


def test_the_environment_is_added_to(monkeypatch):
    monkeypatch.setenv("INHERITED", "1")

    inherited = cluster(environment, size=1, args=("INHERITED",))
    added = cluster(environment, size=1, args=("ADDED",), env={"ADDED": "2"})

    assert inherited.values == ("1",)
    assert added.values == ("2",)


def test_an_exception_comes_back_with_its_traceback(tmp_path):
    with pytest.raises(ClusterError) as raised:
        cluster(fail_on_one, args=(str(tmp_path),), timeout_seconds=SECONDS)

    message, result = str(raised.value), raised.value.result
    assert message.startswith("rank 1 of 2 raised ValueError: bad weather\n")
    assert 'in fail_on_one\n    raise ValueError("bad weather")' in message
    assert message.endswith("The last lines of rank 1:\nbefore")
    error = result.errors[1]
    assert (error.type, error.message) == ("ValueError", "bad weather")
    assert result.failed_rank == 1
    # The rank that is ended shows where it stood.
    assert result.exit_codes == (-signal.SIGTERM, 1)
    assert "in fail_on_one" in result.logs[0]


def test_a_rank_that_is_killed_is_named():
    with pytest.raises(ClusterError, match="rank 1 was killed by SIGKILL"):
        cluster(kill_on_one, timeout_seconds=SECONDS)


def test_time_is_up():
    # On a starved machine rank 1 needs longer.
    for seconds in (3, 60):
        with pytest.raises(ClusterError) as info:
            cluster(wait_on_zero, timeout_seconds=seconds)
        result = info.value.result
        if result.values == (None, "value") and "waiting" in result.logs[0]:
            break

    assert f"within {seconds} s; rank 0 was still" in str(info.value)
    assert (result.failed_rank, result.values) == (None, (None, "value"))
    assert "The last lines of rank 0:\nwaiting\n" in str(info.value)
    assert "The last lines of rank 1:\ndone" in str(info.value)


@pytest.mark.usefixtures("settled")
def test_an_exit_is_a_failure():
    result = cluster(leave, check=False, timeout_seconds=SECONDS)

    assert result.exit_codes == (4, 4)
    assert result.problem.startswith(
        f"rank {result.failed_rank} failed with exit code 4"
    )


def test_a_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys, tfdist; print(tfdist.rank(), sys.argv[1:])")

    result = cluster(script, args=["--epochs", 1], timeout_seconds=SECONDS)

    assert result.logs == ("0 ['--epochs', '1']\n", "1 ['--epochs', '1']\n")
    assert result.values == (None, None)


PLAIN_SCRIPT = """
import sys
import tfdist
from dataclasses import dataclass

@dataclass
class Fact:
    rank: int

def fact(other):
    return Fact(tfdist.rank() + other.rank)

if __name__ == "__main__":
    print(tfdist.testing.cluster(fact, args=(Fact(5),)).values)
"""


def test_a_function_of_the_main_file(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(PLAIN_SCRIPT)

    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=SECONDS
    )

    assert done.stdout == "(Fact(rank=5), Fact(rank=6))\n", done.stderr


USERS_TEST = """
import tfdist

def square(number):
    return number**2 + tfdist.rank()

def test_square():
    assert tfdist.testing.cluster(square, args=(3,)).values == (9, 10)
"""


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_inside_a_users_own_pytest(tmp_path, mode):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_square.py").write_text(USERS_TEST)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"--import-mode={mode}", "tests"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    assert "1 passed" in done.stdout
