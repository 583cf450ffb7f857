"""Which line of a log is the cause; the lines are of real builds, shortened."""

import pytest

from tfdist.horovod_build.diagnosis import find_failure

# pip 23 indents what it passes on; pip 26 puts an error of its own before it.
NO_HEADER = """\
$ python -m pip install --target tools setuptools
ERROR: pip's dependency resolver does not currently take into account all packages
$ python -m pip wheel horovod==0.28.1
  -- Could NOT find NVTX (missing: NVTX_INCLUDE_DIR)
  [ 56%] Building CXX object third_party/gloo/transport/tcp/error.cc.o
  mpi_ops.cc:118:27: warning: 'Unknown' is deprecated [-Wdeprecated-declarations]
  In file included from /b/horovod/tensorflow/xla_mpi_ops.cc:25:
  /tf/platform/fingerprint.h:25:10: fatal error: farmhash.h: No such file or directory
     25 | #include "farmhash.h"
  compilation terminated.
  make[2]: *** [horovod/tensorflow/CMakeFiles/build.make:470: xla_mpi_ops.cc.o] Error 1
  make: *** [Makefile:136: all] Error 2
  subprocess.CalledProcessError: Command '['cmake', '--build', '.']' returned 2.
  error: subprocess-exited-with-error
  ERROR: Failed building wheel for horovod
ERROR: Failed to build one or more wheels
"""
NO_MPI = """\
$ pip wheel
  CMake Error at /usr/share/cmake/Modules/FindPackageHandleStandardArgs.cmake:230 \
(message):

    Could NOT find MPI (missing: MPI_CXX_FOUND)
  Call Stack (most recent call first):
"""


def test_the_compilers_error_and_not_what_follows_from_it():
    failure = find_failure(NO_HEADER.splitlines())

    assert failure.number == 8
    assert failure.text.endswith("fatal error: farmhash.h: No such file or directory")
    assert "Install a TensorFlow from 2.18 to 2.21." in failure.advice


def test_the_message_of_cmake_stands_on_a_later_line():
    failure = find_failure(NO_MPI.splitlines())

    assert failure.number == 2
    assert failure.text.endswith(
        "(message): Could NOT find MPI (missing: MPI_CXX_FOUND)"
    )
    assert "apt-get install libopenmpi-dev" in failure.advice
    assert "HOROVOD_WITHOUT_MPI=1 tfdist horovod install" in failure.advice


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("a.h:8:10: fatal error: mpi.h: No such file or directory", "libopenmpi-dev"),
        ("/usr/bin/ld: cannot find -lmpi: No such file or directory", "libopenmpi-dev"),
        (
            "c++: fatal error: Killed signal terminated program cc1plus",
            "MAKEFLAGS=-j1 tfdist horovod install",
        ),
        ("a.cc:3:1: fatal error: error writing to x.s: No space left on device", "TMP"),
        (
            "CMake Error at CMakeLists.txt:9 (find_package): find NCCL",
            "HOROVOD_NCCL_HOME",
        ),
        ("CMake Error at F.cmake:9: Could NOT find CUDAToolkit", "HOROVOD_CUDA_HOME"),
        ("a.cc:1:9: fatal error: highwayhash/x.h: No such file", "from 2.18 to"),
        ("a.cc:1:9: fatal error: xla/shape.h: No such file", "from 2.18 to 2.21"),
        ("CMake Error at F.cmake:9: Could NOT find Tensorflow", "import tensorflow"),
        ("ERROR: No matching distribution found for horovod==0.28.1", "PIP_FIND_LINKS"),
        ("ERROR: Could not install packages: [Errno 13] Permission denied", "-m venv"),
        ("xla_mpi_ops.cc:99:3: error: 'Foo' was not declared", "Read the log around"),
        ("x.o: in function `f': x.cc: undefined reference to `g'", "Read the log arou"),
    ],
)
def test_what_is_advised(line, advice):
    failure = find_failure(["$ pip wheel", "all is well", f"  {line}", "ERROR: later"])

    assert failure.number == 3
    assert failure.text.startswith(line)
    assert advice in failure.advice


def test_without_a_compiler_error_that_of_pip():
    lines = ["$ pip", "  ERROR: No matching distribution found", "WARNING: old pip", ""]

    assert find_failure(lines).number == 2


def test_without_that_the_exception_of_setup_py():
    lines = ["$ pip", "Traceback (most recent call last):", "ImportError: no x", "end"]

    assert find_failure(lines).number == 3


def test_without_anything_the_last_line_that_says_something():
    assert find_failure(["$ pip", "Collecting horovod", ""]).number == 2


def test_a_program_that_said_nothing():
    assert find_failure(["$ pip"]).text == "$ pip"
