"""The check of an installed Horovod; a script stands for its launcher."""

import io
from pathlib import Path

import pytest

from tfdist.horovod_build import installed as module
from tfdist.horovod_build.installed import (
    BuildError,
    TensorFlow,
    check,
    check_fit,
    run_child,
    try_all_reduce,
)

WITH_MPI = b"GlooController MPIController"
TENSORFLOW = TensorFlow("2.21.0", Path("/site/tensorflow/include"))
# The tag of an empty line follows without a line break, as of mpirun.
BOTH = "[1]:tfdist-trial 1 2 3.0 3.0[1]:\n[0]:tfdist-trial 0 2 3.0 3.0[0]:\n"


@pytest.fixture
def launcher(python):
    """Return a function that sets what the trial prints, and its exit code."""

    def answer(output, code=0):
        python(f"printf '{output}'\necho\necho $7\nexit {code}")

    return answer


def test_a_horovod_that_works(launcher, tensorflow, horovod):
    tensorflow()
    folder = horovod(WITH_MPI).folder
    launcher(BOTH)
    stream = io.StringIO()
    check({}, stream=stream)

    assert stream.getvalue().splitlines() == [
        f"Horovod 0.28.1  {folder}",
        "built for       TensorFlow 2.21.0",
        "installed       TensorFlow 2.21.0",
        "built in        Gloo, MPI",
        "all-reduce      right, on two processes through Gloo",
    ]


@pytest.mark.parametrize(
    ("built_for", "version", "fits"),
    [
        ("2.21.0", "2.21.0", True),
        ("2.1.10", "2.11.0", False),
        ("2.22.0-rc1", "2.22.0rc1", True),
        ("2.22.0-dev20260401", "2.22.0.dev20260401", True),
    ],
)
def test_versions_as_tensorflow_and_pip_write_them(horovod, built_for, version, fits):
    installed = horovod(WITH_MPI, built_for=built_for)
    tensorflow = TensorFlow(version, TENSORFLOW.include)
    if fits:
        assert check_fit(installed, tensorflow) == ("Gloo", "MPI")
    else:
        with pytest.raises(BuildError, match="Received: one for 2.1.10, and TensorFl"):
            check_fit(installed, tensorflow)


def test_horovod_that_is_missing_or_lacks_tensorflow(horovod):
    with pytest.raises(BuildError, match="must be installed. .* Run: tfdist horovod i"):
        check_fit(None, TENSORFLOW)
    with pytest.raises(BuildError, match="its part for TensorFlow. Received: Horovod"):
        check_fit(horovod(b"nothing"), TENSORFLOW)


@pytest.mark.parametrize(
    ("parts", "output", "code", "error"),
    [
        ("Gloo", "timed out", 1, "on Gloo. Received: exit code 1. .*GLOO_IFACE=lo .*"),
        ("Gloo", BOTH, 3, "on Gloo. Received: exit code 3. "),
        ("Gloo", BOTH.replace("3.0", "2.0"), 0, "Received: a wrong or missing sum. "),
        ("Gloo", BOTH.splitlines()[0], 0, "Received: a wrong or missing sum. "),
        ("MPI", "", 1, "on MPI. .*mpirun -np 2 hostname"),
    ],
)
def test_an_all_reduce_that_fails(launcher, parts, output, code, error):
    launcher(output.replace("\n", "\\n"), code)

    with pytest.raises(BuildError, match=error) as raised:
        try_all_reduce([parts], {})
    assert str(raised.value).endswith("\n    localhost:2")


def test_a_program_that_ends():
    command = ["sh", "-c", "echo a; echo b >&2; exit 4"]
    assert run_child(command, {}, timeout_seconds=300) == (4, "a\nb\n")


@pytest.mark.parametrize("ignore", ["", "trap '' TERM;"])
def test_a_program_that_hangs_is_killed_with_its_children(ignore, monkeypatch):
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.2)
    # The output is open for as long as any of them lives.
    program = f"{ignore} echo here; sleep 600 & wait; wait; sleep 600"

    # On a starved machine it needs longer until it is there.
    for seconds in (0.5, 60.0):
        options = {"env": {"PATH": "/bin"}, "timeout_seconds": seconds}
        done = run_child(["bash", "-c", program], **options)
        if done[1]:
            break
    assert done == (None, "here\n")
