"""Finding compilers; the programs are scripts, and the environment is given."""

import pytest

from tfdist.horovod_build.installed import BuildError
from tfdist.horovod_build.toolchain import find_toolchain

PROGRAMS = {
    "c++": "echo 'c++ (Test) 12.2.0'",
    "cc": "exit 0",
    "make": "exit 0",
    "cmake": "echo 'cmake version 3.25.1'",
}


@pytest.fixture
def env(tmp_path):
    """Return an environment whose PATH holds all that is needed."""
    for name, script in PROGRAMS.items():
        write(tmp_path / name, script)
    return {"PATH": str(tmp_path)}


def write(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_what_is_found(env, tmp_path):
    found = find_toolchain(env)

    assert (found.cxx, found.cc) == (str(tmp_path / "c++"), str(tmp_path / "cc"))
    assert found.compiler == "c++ (Test) 12.2.0"
    assert found.cmake.path == tmp_path / "cmake"
    assert found.mpi is None


def test_another_name_of_the_compiler(env, tmp_path):
    (tmp_path / "c++").rename(tmp_path / "clang++")

    assert find_toolchain(env).cxx == str(tmp_path / "clang++")


def test_a_compiler_that_is_named_may_have_options(env, tmp_path):
    write(tmp_path / "g++-14", "[ $1 = -m64 ] && echo 'g++ 14'")

    assert find_toolchain({**env, "CXX": "g++-14 -m64"}).compiler == "g++ 14"


@pytest.mark.parametrize(
    ("missing", "error"),
    [
        ("c++", r"A C\+\+ compiler must be installed\..*apt-get install g\+\+; Fedora"),
        ("cc", r"A C compiler must be installed\..*apt-get install gcc; Fedora"),
        ("make", r"make must be installed.*apt-get install make; Fedora"),
    ],
)
def test_what_is_missing_is_named_with_its_package(env, tmp_path, missing, error):
    (tmp_path / missing).unlink()

    with pytest.raises(BuildError, match=error) as raised:
        find_toolchain(env)
    assert raised.value.exit_code == 2
    assert f"({tmp_path})" in str(raised.value)


def test_a_compiler_that_is_too_old(env, tmp_path):
    script = "[ $1 = --version ] && echo 'g++ 4.8' && exit; echo 'no -std=c++17' >&2"
    write(tmp_path / "c++", f"{script}; exit 1")

    error = r"must know C\+\+17.*Received: g\+\+ 4\.8 .*says: no -std=c\+\+17\. Debian"
    with pytest.raises(BuildError, match=error):
        find_toolchain(env)


@pytest.mark.parametrize("variable", ["CXX", "CC"])
def test_a_compiler_that_is_named_and_not_there(env, variable):
    error = f"{variable} must name a .* compiler. Received: {variable}=icc -O2, which"
    with pytest.raises(BuildError, match=error):
        find_toolchain({**env, variable: "icc -O2"})


def test_mpi_is_built_in_where_it_is_there(env, tmp_path):
    mpi = str(write(tmp_path / "mpicxx", "exit 0"))

    assert find_toolchain(env).mpi == mpi
    assert find_toolchain({**env, "HOROVOD_WITHOUT_MPI": "1"}).mpi is None


def test_mpi_that_is_wanted_and_missing(env):
    with pytest.raises(BuildError, match="HOROVOD_WITH_MPI=1 needs .*libopenmpi-dev"):
        find_toolchain({**env, "HOROVOD_WITH_MPI": "1"})


def test_mpi_may_be_where_its_variable_says(env):
    find_toolchain({**env, "HOROVOD_WITH_MPI": "1", "MPI_HOME": "/opt/mpi"})


def test_a_folder_that_is_none(env):
    with pytest.raises(BuildError, match="HOROVOD_NCCL_HOME must be a folder. Recei"):
        find_toolchain({**env, "HOROVOD_NCCL_HOME": "/no/such/folder"})


def test_horovod_without_tensorflow_is_of_no_use(env):
    with pytest.raises(BuildError, match="HOROVOD_WITHOUT_TENSORFLOW=1. Unset it"):
        find_toolchain({**env, "HOROVOD_WITHOUT_TENSORFLOW": "1"})
