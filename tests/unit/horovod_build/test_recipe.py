"""The environment and the commands of a build, against what was worked out by hand."""

import re
import tomllib
from pathlib import Path

import pytest

from tfdist.horovod_build.recipe import (
    HOROVOD_VERSION,
    Ground,
    build_environment,
    install_commands,
    tools_command,
    unfulfilled,
    wheel_command,
)

ROOT = Path(__file__).parents[3]
GROUND = Ground(
    cxx="/usr/bin/c++",
    cc="/usr/bin/cc",
    cmake=Path("/tmp/b/cmake"),
    tools=Path("/tmp/b/tools"),
    include=[Path("/tmp/b/include"), Path("/tf/external/highwayhash")],
    jobs=2,
)


def test_the_environment_of_a_plain_build():
    assert build_environment({"PATH": "/bin"}, GROUND) == {
        "CC": "/usr/bin/cc",
        "CMAKE_GENERATOR": "Unix Makefiles",
        "CPLUS_INCLUDE_PATH": "/tmp/b/include:/tf/external/highwayhash",
        "CXX": "/usr/bin/c++",
        "HOROVOD_CMAKE": "/tmp/b/cmake",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_TENSORFLOW": "1",
        "MAKEFLAGS": "-j2",
        "PATH": "/bin",
        "PYTHONPATH": "/tmp/b/tools",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def test_options_of_horovod_are_passed_on():
    options = {
        "HOROVOD_CUDA_HOME": "/cuda",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_NCCL_HOME": "/nccl",
        "HOROVOD_WITH_MPI": "1",
    }

    assert options.items() <= build_environment(options, GROUND).items()


@pytest.mark.parametrize(
    ("option", "opposite"),
    [
        ("HOROVOD_WITHOUT_GLOO", "HOROVOD_WITH_GLOO"),
        ("HOROVOD_WITH_PYTORCH", "HOROVOD_WITHOUT_PYTORCH"),
        ("HOROVOD_WITH_MXNET", "HOROVOD_WITHOUT_MXNET"),
    ],
)
def test_no_default_contradicts_an_option(option, opposite):
    assert opposite not in build_environment({option: "1"}, GROUND)


def test_folders_that_are_on_a_path_stay_on_it():
    env = {"CPLUS_INCLUDE_PATH": "/mine", "PYTHONPATH": "/yours"}
    environment = build_environment(env, GROUND)

    assert environment["CPLUS_INCLUDE_PATH"].endswith("highwayhash:/mine")
    assert environment["PYTHONPATH"] == "/tmp/b/tools:/yours"


@pytest.mark.parametrize(
    ("env", "flags"),
    [
        ({}, "-j2"),
        ({"MAKEFLAGS": ""}, "-j2"),
        ({"MAKEFLAGS": "-j1"}, "-j1"),
        ({"MAKEFLAGS": "-k -j3"}, "-k -j3"),
        ({"MAKEFLAGS": "w -- VENV=.venv-oldest", "MAKELEVEL": "2"}, "-j2"),
        ({"MAKEFLAGS": " -j5 --jobserver-auth=3,4", "MAKELEVEL": "1"}, "-j5"),
    ],
)
def test_flags_of_make_are_those_of_the_user_not_of_a_make_around_it(env, flags):
    environment = build_environment(env, GROUND)

    assert environment["MAKEFLAGS"] == flags
    assert "MAKELEVEL" not in environment


def test_the_wheel_is_always_compiled():
    command = wheel_command("/v/bin/python", Path("/tmp/w"))

    assert command[:4] == ["/v/bin/python", "-m", "pip", "wheel"]
    assert command[-2:] == ["--wheel-dir=/tmp/w", f"horovod=={HOROVOD_VERSION}"]
    assert {"--no-cache-dir", "--no-binary=horovod", "--no-build-isolation"} <= set(
        command
    )


@pytest.mark.parametrize("with_cmake", [False, True])
def test_tools_go_to_a_folder_of_their_own(with_cmake):
    command = tools_command("python", Path("/tmp/t"), with_cmake=with_cmake)

    assert command[command.index("--target") + 1] == "/tmp/t"
    assert ("cmake>=3.13,<4" in command) is with_cmake


def test_a_wheel_replaces_what_is_there_and_brings_what_it_needs():
    replace, complete = install_commands("python", Path("/tmp/w/horovod.whl"))

    assert replace[-3:] == ["--force-reinstall", "--no-deps", "/tmp/w/horovod.whl"]
    assert complete[-2:] == [
        "/tmp/w/horovod.whl",
        'setuptools; python_version >= "3.12"',
    ]


@pytest.mark.parametrize(
    ("env", "parts", "reason"),
    [
        ({}, (), None),
        ({"HOROVOD_WITH_MPI": "1"}, ("gloo", "mpi"), None),
        ({"HOROVOD_WITH_MPI": "1"}, ("gloo",), "HOROVOD_WITH_MPI=1 is set, .* without"),
        ({"HOROVOD_WITHOUT_MPI": "1"}, ("gloo",), None),
        ({"HOROVOD_WITHOUT_MPI": "1"}, ("gloo", "mpi"), ".* with MPI"),
        ({"HOROVOD_GPU_OPERATIONS": "NCCL"}, ("gloo",), ".*=NCCL is set, .* without"),
        ({"HOROVOD_GPU_OPERATIONS": "NCCL"}, ("gloo", "nccl"), None),
    ],
)
def test_what_an_installed_horovod_does_not_fulfil(env, parts, reason):
    if reason is None:
        assert unfulfilled(env, parts) is None
    else:
        assert re.match(reason, unfulfilled(env, parts))


def test_the_extra_names_the_version_that_is_built():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    extra = project["optional-dependencies"]["horovod"]
    assert extra == [f"horovod=={HOROVOD_VERSION}"]
