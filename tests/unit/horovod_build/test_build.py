"""The order and output of an installation; nothing is compiled."""

import io
from pathlib import Path

import pytest

from tfdist.horovod_build import build as module
from tfdist.horovod_build.build import default_log, install, run_streamed
from tfdist.horovod_build.installed import BuildError, Installed, TensorFlow
from tfdist.horovod_build.toolchain import CMake, Toolchain

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

    def run(self, command, env, log, stream):
        self.ran.append(command[3])
        self.environments.append(env)
        if command[3] == self.failing:
            return 1, "$ pip\na.cc:1:1: fatal error: mpi.h: No such file\n"
        if command[3] == "wheel":
            [folder] = [word for word in command if word.startswith("--wheel-dir=")]
            folder = Path(folder.partition("=")[2])
            folder.mkdir()
            (folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl").touch()
        return 0, ""

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
    monkeypatch.setattr(module, "run_streamed", world.run)
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
    assert "[4/4] all-reduce on two processes\n" in told
    assert told.endswith(
        "Horovod 0.28.1 works with TensorFlow 2.21.0 (Gloo): two processes have "
        "added up.\n"
    )


def test_only_the_compilation_sees_the_folders_of_the_build(world, call):
    call({"HOME": "/home/user"})

    plain = {"HOME": "/home/user"}
    assert [env == plain for env in world.environments] == [True, False, True, True]


def test_nothing_is_built_where_horovod_works(world, call):
    world.installed = HOROVOD
    told = call()

    assert world.ran == ["all-reduce"]
    assert told.splitlines()[-1] == (
        "It was installed already; --force builds it again."
    )


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


def test_a_build_that_fails_names_the_missing_package(world, call, tmp_path):
    world.failing = "wheel"

    with pytest.raises(BuildError) as raised:
        call()
    assert raised.value.exit_code == 1
    assert str(raised.value).startswith(
        "Horovod could not be built. Received: exit code 1 of "
    )
    assert f"all output is in {tmp_path / 'log'}. Install MPI." in str(raised.value)
    assert "apt-get install libopenmpi-dev" in str(raised.value)
    assert world.ran == ["install", "wheel"]


def test_output_goes_to_the_stream_and_the_log(tmp_path):
    stream, log = io.StringIO(), tmp_path / "log"
    log.write_text("before\n")

    done = run_streamed(["sh", "-c", "echo a; echo b >&2; exit 3"], {}, log, stream)

    assert done == (3, "a\nb\n")
    assert stream.getvalue() == "a\nb\n"
    assert log.read_text() == "before\n$ sh -c 'echo a; echo b >&2; exit 3'\na\nb\n"


def test_a_log_that_cannot_be_written_is_refused():
    with pytest.raises(BuildError, match=r"Received: /dev/null/x .*another: --log"):
        install({}, log=Path("/dev/null/x"), stream=io.StringIO())


def test_the_log_is_among_the_caches_by_default():
    home = Path("/home/user")
    log = "tfdist/horovod-install.log"
    assert default_log({}, home) == home / ".cache" / log
    assert default_log({"XDG_CACHE_HOME": "/caches"}, home) == Path("/caches") / log
