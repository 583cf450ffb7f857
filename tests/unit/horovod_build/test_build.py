"""The order of an installation, and what is told; nothing is compiled."""

import io
from pathlib import Path

import pytest

from tfdist.horovod_build import build as module
from tfdist.horovod_build.build import install
from tfdist.horovod_build.cmake import CMake
from tfdist.horovod_build.errors import BuildError
from tfdist.horovod_build.installed import Installed
from tfdist.horovod_build.tensorflow import TensorFlow
from tfdist.horovod_build.toolchain import Toolchain

TENSORFLOW = TensorFlow("2.21.0", Path("/site/tensorflow"))
HOROVOD = Installed("0.28.1", Path("/site/horovod"), "2.21.0", ("TensorFlow",))
TOOLCHAIN = Toolchain("/bin/c++", "/bin/cc", "c++ 12", CMake(None, "from PyPI"), None)


class World:
    """Stands for the machine: remembers what is run, and answers as told."""

    def __init__(self):
        self.ran = []
        self.environments = []
        self.installed = None
        self.failing = None
        self.parts = ("gloo",)

    def run(self, log, command, env, watch=None):
        self.ran.append(command[3])
        self.environments.append(env)
        if command[3] == self.failing:
            log.path.write_text("$ pip\na.cc:1:1: fatal error: mpi.h: No such file\n")
            return 1
        if command[3] == "wheel":
            [folder] = [word for word in command if word.startswith("--wheel-dir=")]
            folder = Path(folder.partition("=")[2])
            folder.mkdir()
            (folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl").touch()
        return 0

    def try_all_reduce(self, parts, env):
        self.ran.append("all-reduce")
        return "gloo"


@pytest.fixture(autouse=True)
def world(monkeypatch):
    world = World()
    for name, value in {
        "find_tensorflow": lambda: TENSORFLOW,
        "find_toolchain": lambda env: TOOLCHAIN,
        "find_installed": lambda: world.installed,
        "check_target": lambda env: None,
        "forwarding_headers": lambda tensorflow: {},
        "write_headers": lambda tensorflow, folder: [folder],
        "probe": lambda env: world.parts,
        "try_all_reduce": world.try_all_reduce,
    }.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module.Log, "run", lambda log, *args: world.run(log, *args))
    return world


@pytest.fixture
def call(tmp_path):
    """Return a function that installs, and gives what it has told."""

    def call(env=None, **options):
        stream = io.StringIO()
        install(env or {}, log=tmp_path / "log", stream=stream, **options)
        return stream.getvalue()

    return call


def test_the_phases_in_their_order(world, call, tmp_path):
    told = call()

    assert world.ran == ["install", "wheel", "install", "install", "all-reduce"]
    assert told.startswith("Horovod 0.28.1 for TensorFlow 2.21.0\n  compiler  c++ 12")
    assert f"  log       {tmp_path / 'log'}\n" in told
    assert "[4/4] all-reduce on two processes: done after 0:0" in told
    assert told.endswith(
        "Horovod 0.28.1 works with TensorFlow 2.21.0 (Gloo): two processes have "
        "added up.\n"
    )


def test_only_the_compilation_sees_the_folders_of_the_build(world, call):
    call({"HOME": "/home/user"})

    plain = {"HOME": "/home/user"}
    assert [env == plain for env in world.environments] == [True, False, True, True]


def test_the_folder_of_the_build_is_gone_afterwards(world, call):
    call()

    assert not Path(world.environments[1]["HOROVOD_CMAKE"]).exists()


def test_nothing_is_built_where_horovod_works(world, call):
    world.installed = HOROVOD
    told = call()

    assert world.ran == ["all-reduce"]
    assert told.splitlines()[-1] == (
        "It was installed already; --force builds it again."
    )


def test_force_builds_all_the_same(world, call):
    world.installed = HOROVOD
    call(force=True)

    assert "wheel" in world.ran


@pytest.mark.parametrize(
    ("installed", "env", "reason"),
    [
        (("0.28.1", "2.18.0"), {}, "Received: one for 2.18.0, beside TensorFlow 2.21"),
        (("0.27.0", "2.21.0"), {}, "Horovod 0.27.0 is installed, not 0.28.1."),
        (("0.28.1", "2.21.0"), {"HOROVOD_WITH_MPI": "1"}, "HOROVOD_WITH_MPI=1 is set"),
    ],
)
def test_what_does_not_fit_is_built_again(world, call, installed, env, reason):
    version, built_for = installed
    world.installed = Installed(version, HOROVOD.folder, built_for, ("TensorFlow",))
    told = call(env)

    assert told.startswith("Building again: ")
    assert reason in told.splitlines()[0]
    assert "wheel" in world.ran


def test_a_local_version_is_the_same_release(world, call):
    world.installed = Installed("0.28.1+x", HOROVOD.folder, "2.21.0", ("TensorFlow",))
    call()

    assert "wheel" not in world.ran


def test_what_does_not_load_is_built_again(world, call, monkeypatch):
    world.installed = HOROVOD
    answers = iter([BuildError("undefined symbol"), ("gloo",)])

    def probe(env):
        answer = next(answers)
        if isinstance(answer, BuildError):
            raise answer
        return answer

    monkeypatch.setattr(module, "probe", probe)
    assert call().startswith("Building again: undefined symbol\n")


def test_a_build_that_fails_says_which_line_and_what_to_install(world, call, tmp_path):
    world.failing = "wheel"

    with pytest.raises(BuildError) as raised:
        call()
    assert raised.value.exit_code == 1
    assert str(raised.value).splitlines()[:2] == [
        f"Horovod could not be built. {tmp_path / 'log'}, line 2, says:",
        "    a.cc:1:1: fatal error: mpi.h: No such file",
    ]
    assert "apt-get install libopenmpi-dev" in str(raised.value)
    assert world.ran == ["install", "wheel"]
