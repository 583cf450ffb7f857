"""Which CMake builds Horovod; the programs are scripts that tell a version."""

import subprocess
from pathlib import Path

import pytest

from tfdist.horovod_build.installed import BuildError
from tfdist.horovod_build.toolchain import (
    brought_cmake,
    find_cmake,
    why_unfit,
    write_front,
)


@pytest.fixture
def cmake(tmp_path):
    """Return a function that writes a CMake of some version, and gives its path."""

    def write(version, name="cmake"):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho 'cmake version {version}'\n")
        path.chmod(0o755)
        return path

    return write


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "does not run"),
        ("3.12.4", "is 3.12.4: Horovod needs 3.13 or newer"),
        ("3.13", None),
        ("3.13.0", None),
        ("3.31.6", None),
        ("4", "is 4: Horovod needs one below 4"),
        ("4.0.0", "is 4.0.0: Horovod needs one below 4"),
        ("10.1", "is 10.1: Horovod needs one below 4"),
    ],
)
def test_which_versions_are_fit(version, reason):
    assert why_unfit(version) == reason


def test_a_fit_one_on_path_is_used(cmake, tmp_path):
    path = cmake("3.25.1")

    found = find_cmake({"PATH": str(tmp_path)})
    assert found.path == path
    assert found.description == f"3.25.1, {path}"


def test_a_suffix_of_the_version_does_not_matter(cmake, tmp_path):
    cmake("3.30.0-rc2")

    assert find_cmake({"PATH": str(tmp_path)}).path is not None


def test_for_one_that_is_too_new_another_is_brought(cmake, tmp_path):
    path = cmake("4.1.2")

    found = find_cmake({"PATH": str(tmp_path)})
    assert found.path is None
    assert found.description == (
        f"from PyPI, for this build only ({path} is 4.1.2: Horovod needs one below 4)"
    )


def test_for_none_one_is_brought(tmp_path):
    found = find_cmake({"PATH": str(tmp_path)})

    assert found.path is None
    assert "(no cmake on PATH)" in found.description


def test_for_one_that_does_not_run_another_is_brought(cmake, tmp_path):
    cmake("3.25.1").write_text("#!/bin/sh\nexit 1\n")

    found = find_cmake({"PATH": str(tmp_path)})
    assert found.path is None
    assert "does not run" in found.description


def test_horovods_own_variable_comes_first(cmake, tmp_path):
    cmake("4.0.0")
    other = cmake("3.20.0", name="other-cmake")

    env = {"PATH": str(tmp_path), "HOROVOD_CMAKE": str(other)}
    assert find_cmake(env).path == other


def test_an_unfit_one_that_was_asked_for_is_refused(cmake, tmp_path):
    path = cmake("4.0.0")

    with pytest.raises(BuildError, match="HOROVOD_CMAKE must name .* is 4.0.0") as e:
        find_cmake({"PATH": "", "HOROVOD_CMAKE": str(path)})
    assert e.value.exit_code == 2


def test_where_the_brought_one_is():
    assert brought_cmake(Path("/t")) == Path("/t/cmake/data/bin/cmake")


def test_the_front_adds_to_the_configuration_only(tmp_path):
    cmake = tmp_path / "a cmake"
    cmake.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    cmake.chmod(0o755)
    front = write_front(cmake, tmp_path / "front")

    def call(*arguments):
        return subprocess.run(
            [front, *arguments], capture_output=True, text=True, check=True
        ).stdout

    assert call("--build", ".", "--", "-j2") == "<--build><.><--><-j2>"
    assert call("..", "-DA=b c") == (
        "<..><-DA=b c><-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG>"
    )
