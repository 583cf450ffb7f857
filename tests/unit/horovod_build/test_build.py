"""The steps of an installation; a script stands for pip, and nothing is compiled."""

import io
import subprocess
import sys
import sysconfig
import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest

from tfdist.horovod_build import HOROVOD_VERSION, BuildError, default_log
from tfdist.horovod_build.build import check_programs, check_target, install
from tfdist.horovod_build.recipe import (
    build_environment,
    unfulfilled,
    wheel_command,
    write_headers,
)

ROOT = Path(__file__).parents[3]
OLD = "tensorflow/compiler/xla"
NAMES = (
    "client/xla_builder.h",
    "service/custom_call_target_registry.h",
    "service/hlo.pb.h",
    "shape.h",
    "xla_data.pb.h",
)
# Stands for pip, and for the launcher of Horovod. As pip it prints its subcommand and
# two variables, makes a wheel, installs what `built` holds, or fails as FAILING says.
PYTHON = """
if [ "$3" = horovod.runner.launch ]; then
  printf 'tfdist-trial %s 2 '"${SUM:-3.0} ${SUM:-3.0}"'\\n' 0 1
  exit 0
fi
echo "$3 $MAKEFLAGS $HOROVOD_WITH_GLOO"
cd ${0%/*}
for word; do case $word in
  --wheel-dir=*) mkdir -p ${word#*=}; touch ${word#*=}/horovod-0.whl;;
  *.whl) rm -rf horovod*; cp -r built/* .;;
esac; done
[ "$3" = "$FAILING" ] && echo "a.cc:1:1: fatal error: mpi.h: No such file" && exit 1
exit 0
"""


@pytest.fixture
def call(tmp_path, tensorflow, write, horovod, python):
    """Return a function that installs in an environment; return its output."""
    write("pip", "25.0")
    tensorflow(*[f"xla/{name}" for name in NAMES])
    horovod(b"GlooController", folder=tmp_path / "built")
    python(PYTHON)

    def call(*, env=(), **options):
        stream = io.StringIO()
        env = {"PATH": "/bin:/usr/bin", "PIP_BREAK_SYSTEM_PACKAGES": "1", **dict(env)}
        options = {"log": tmp_path / "logs/log", **options}
        try:
            install(env, stream=stream, **options)
        except BuildError as error:
            print(error, file=stream)
        return stream.getvalue().splitlines()

    return call


def test_the_steps_in_their_order(call, tmp_path):
    jobs = build_environment({}, tmp_path, [])["MAKEFLAGS"]

    assert call() == [
        "Horovod 0.28.1 for TensorFlow 2.21.0",
        f"  log       {tmp_path / 'logs/log'}",
        "[1/4] fetching build tools into a temporary folder",
        "install  ",
        f"[2/4] compiling (make {jobs})",
        f"wheel {jobs} 1",
        "[3/4] installing",
        "install  ",
        "install  ",
        "[4/4] all-reduce on two processes",
        "Horovod 0.28.1 works with TensorFlow 2.21.0 (Gloo): two processes have "
        "added up.",
    ]
    commands = (tmp_path / "logs/log").read_text().splitlines()
    assert commands[0].startswith(f"$ {tmp_path}/python -m pip install ")
    # A cached wheel may be for another TensorFlow.
    assert " --no-cache-dir --no-binary=horovod " in commands[2]
    assert commands[2].endswith("/horovod.txt")
    assert " --force-reinstall --no-deps " in commands[4]
    assert commands[6].endswith("""'setuptools; python_version >= "3.12"'""")


def test_another_source_than_the_known_one_is_not_built(tmp_path):
    """A changed hash stands for a changed archive."""
    command = wheel_command(tmp_path / "wheels")
    source = tmp_path / "wheels/horovod.txt"
    source.write_text(source.read_text().replace("sha256:92", "sha256:00"))

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_nothing_is_built_where_horovod_works(call, horovod):
    horovod(b"GlooController")

    printed = call()
    assert printed[-1] == "It was installed already; --force builds it again."
    assert len(printed) == 2
    assert "[3/4] installing" in call(force=True)


@pytest.mark.parametrize(
    ("version", "env", "reason"),
    [
        ("0.27.0", {}, "Horovod 0.27.0 is installed, not 0.28.1."),
        ("0.28.1", {"HOROVOD_WITH_MPI": "1"}, "HOROVOD_WITH_MPI=1 is set"),
        ("0.28.1", {"SUM": "2.0"}, "Two processes must add up"),
    ],
)
def test_what_does_not_fit_is_built_again(call, horovod, version, env, reason):
    horovod(b"GlooController", version)
    printed = call(env=env)

    assert printed[0].startswith(f"Building again: {reason}")
    assert "[3/4] installing" in printed
    works = printed[-1].startswith("Horovod 0.28.1 works with TensorFlow 2.21.0 (Gloo)")
    assert works is ("SUM" not in env)


def test_a_build_that_fails_names_the_missing_package(call, tmp_path):
    error = call(env={"FAILING": "wheel"})[-1]

    assert error.startswith("Horovod could not be built. Received: exit code 1 of ")
    assert f"all output is in {tmp_path / 'logs/log'}. Install MPI." in error
    assert "apt-get install libopenmpi-dev" in error


def test_the_log(call, tmp_path):
    error = call(log=Path("/dev/null/x"))[-1]
    assert error.startswith("The log must be a file that can be written. Received: /d")
    log = "tfdist/horovod-install.log"
    assert default_log({}, tmp_path) == tmp_path / ".cache" / log
    assert default_log({"XDG_CACHE_HOME": "/c"}, tmp_path) == Path("/c") / log


@pytest.mark.parametrize("missing", ["c++", "cc", "make"])
def test_a_missing_program_is_named_with_its_package(tmp_path, missing):
    for name in {"c++", "cc", "make"} - {missing}:
        (tmp_path / name).touch(mode=0o755)
    error = rf"{missing.replace('+', '.')}.* on PATH \({tmp_path}\)\. .*install g\+\+ m"

    with pytest.raises(BuildError, match=error) as raised:
        check_programs({"PATH": str(tmp_path)})
    assert raised.value.exit_code == 2


def test_a_named_compiler_may_have_options(tmp_path):
    for name in ("icpc", "cc", "make"):
        (tmp_path / name).touch(mode=0o755)
    check_programs({"PATH": str(tmp_path), "CXX": "icpc -O2"})

    with pytest.raises(BuildError, match="Received: no icc on PATH"):
        check_programs({"PATH": str(tmp_path), "CXX": "icpc", "CC": "icc -O2"})


def test_a_compiler_with_an_open_quote():
    message = (
        r"^CXX must be a command\. Received: CXX=g\+\+ \"x \(No closing quotation\)"
    )
    with pytest.raises(BuildError, match=message):
        check_programs({"PATH": "/bin", "CXX": 'g++ "x'})


@pytest.mark.parametrize("prefix", ["/home/user/.venv", sys.base_prefix])
def test_an_environment_that_the_system_manages(write, prefix, tmp_path, monkeypatch):
    write("pip", "25.0")
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "prefix", prefix)
    check_target({"PIP_BREAK_SYSTEM_PACKAGES": "1"})

    message = "which the system manages. Use a virtual env"
    is_refused = prefix == sys.base_prefix
    with pytest.raises(BuildError, match=message) if is_refused else nullcontext():
        check_target({})


@pytest.mark.usefixtures("site")
def test_an_environment_without_pip():
    with pytest.raises(BuildError, match="without pip. Run: .*-m ensurepip"):
        check_target({})


@pytest.mark.parametrize(
    ("option", "opposite"),
    [
        ("HOROVOD_WITHOUT_GLOO", "HOROVOD_WITH_GLOO"),
        ("HOROVOD_WITH_PYTORCH", "HOROVOD_WITHOUT_PYTORCH"),
    ],
)
def test_no_default_contradicts_an_option(tmp_path, option, opposite):
    assert opposite in build_environment({}, tmp_path, [])
    environment = build_environment({option: "1"}, tmp_path, [])
    assert opposite not in environment
    assert environment[option] == "1"


def test_search_paths_and_flags_of_the_user_stay(tmp_path):
    env = {"CPLUS_INCLUDE_PATH": "/mine", "PYTHONPATH": "/yours", "MAKEFLAGS": "-j1"}
    environment = build_environment(env, tmp_path, [Path("/a"), Path("/b")])

    assert environment["CPLUS_INCLUDE_PATH"] == "/a:/b:/mine"
    assert environment["PYTHONPATH"] == f"{tmp_path}/tools:/yours"
    assert environment["MAKEFLAGS"] == "-j1"
    # Those of a make around the build are for its own targets.
    env |= {"MAKEFLAGS": "w --jobserver-auth=3,4", "MAKELEVEL": "1"}
    environment = build_environment(env, tmp_path, [])
    assert environment["MAKEFLAGS"].startswith("-j")
    assert "MAKELEVEL" not in environment


def test_cmake_compiles_without_debugging_symbols(tmp_path):
    cmake = tmp_path / "a cmake"
    cmake.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    cmake.chmod(0o755)
    env = {"HOROVOD_CMAKE": str(cmake)}
    front = build_environment(env, tmp_path, [])["HOROVOD_CMAKE"]

    def call(*arguments):
        return subprocess.check_output([front, *arguments], text=True)

    assert call("--build", ".", "--", "-j2") == "<--build><.><--><-j2>"
    flags = "<-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG>"
    assert call("..", "-DA=b c") == f"<..><-DA=b c>{flags}"


@pytest.mark.parametrize(
    ("env", "parts", "reason"),
    [
        ({"HOROVOD_WITH_MPI": "1"}, ("Gloo", "MPI"), None),
        ({"HOROVOD_WITHOUT_MPI": "1"}, ("Gloo", "MPI"), "built with MPI."),
        ({"HOROVOD_GPU_OPERATIONS": "NCCL"}, ("Gloo",), "built without NCCL."),
    ],
)
def test_an_option_that_an_installed_horovod_does_not_fulfil(env, parts, reason):
    found = unfulfilled(env, parts)
    assert found is None if reason is None else found.endswith(reason)


def test_old_headers_forward_to_the_moved_ones(tensorflow, tmp_path):
    here = tensorflow(
        *[f"{OLD}/{name}" for name in NAMES[2:]],
        *("xla/hlo/builder/xla_builder.h", f"xla/{NAMES[1]}"),
        "external/highwayhash/highwayhash/arch_specific.h",
    )
    folder = tmp_path / "forward"

    external = here.include / "external/highwayhash"
    assert write_headers(here, folder) == [folder, external]
    headers = sorted(path for path in folder.rglob("*") if path.is_file())
    assert headers == [folder / OLD / name for name in NAMES[:2]]
    text = '#pragma once\n#include "xla/hlo/builder/xla_builder.h"\n'
    assert headers[0].read_text() == text


def test_a_header_that_is_missing(tensorflow, tmp_path):
    error = f"needs the header {OLD}/shape.h. Received: TensorFlow 2.21.0, .* under xla"
    names = [f"xla/{name}" for name in NAMES if name != "shape.h"]

    with pytest.raises(BuildError, match=error):
        write_headers(tensorflow(*names), tmp_path)


def test_the_extra_names_the_version_that_is_built():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    extra = project["optional-dependencies"]["horovod"]
    assert extra == [f"horovod=={HOROVOD_VERSION}"]
