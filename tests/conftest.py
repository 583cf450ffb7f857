"""Fixtures of all tests: a clean environment, reasons to skip, forked processes."""

import fcntl
import functools
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tfdist.cluster.this_host import count_gpus, may_use_gpu

# Before the first import of TensorFlow; the processes that tests start inherit it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# A shell lets what it starts in the background ignore Ctrl-C, and `nohup` SIGHUP. The
# processes that tests start and signal would inherit it.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# Commands that a test may ask for with `@pytest.mark.requires("taskset")`, and the
# Debian package that holds each. `.ci/run` installs what Debian does not bring itself.
DEBIAN_PACKAGES = {
    "ip": "iproute2",
    "java": "default-jre-headless",
    "mpicxx": "libopenmpi-dev",
    "mpirun": "openmpi-bin",
    "munged": "munge",
    "scontrol": "slurm-client",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "ss": "iproute2",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
    "taskset": "util-linux",
    "unshare": "util-linux",
}

# Those that come into the environment of Python, and what brings them.
BUILT_COMMANDS = {
    "horovodrun": "tfdist horovod install",
    "jupyter": "pip install 'tfdist[docs]'",
    "pyspark": "pip install 'tfdist[spark]'",
    "ray": "pip install 'tfdist[ray]'",
}

# How the names of the modules of the equality matrix begin.
MATRIX = "distributed/test_equality"

# Which part of the slow tests may run, such as the second of three.
PART, PARTS = map(int, os.environ.get("TFDIST_SLOW_PART", "1/1").split("/"))

# Where Python looks for `sitecustomize`, and what that asks for a fork.
STARTUP = str(Path(__file__).parent / "distributed" / "startup")
FORK_SERVER = Path(__file__).parent / "distributed" / "fork_server.py"

# How the variables begin in which a launcher or a scheduler describes a cluster.
OF_LAUNCHERS = (
    "TF_CONFIG",
    "TFDIST_",
    "HOROVOD_",
    "OMPI_",
    "PMI_",
    "MPI_LOCAL",
    "SLURM",
)

# Variables that a library writes when it is imported, and pytest with every test. A
# process that takes a rank, also a pretended one, writes TFDIST_RANK_OWNER.
WRITTEN_BY_LIBRARIES = (
    "ENABLE_RUNTIME_UPTIME_TELEMETRY",
    "HDF5_PLUGIN_PATH",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "PYTEST_CURRENT_TEST",
    "TF2_BEHAVIOR",
    "TFDIST_RANK_OWNER",
    "TPU_ML_PLATFORM",
    "TPU_ML_PLATFORM_VERSION",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):  # type: ignore[no-untyped-def]
    """Give a worker of xdist whole files, and one of them the whole equality matrix."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return MATRIX if MATRIX in file else file

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Begin with the equality matrix, which takes the longest; leave parts out."""
    items.sort(key=lambda item: MATRIX not in item.nodeid)
    chosen, left_out = [], []
    for item in items:
        (left_out if is_of_another_part(item) else chosen).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


def is_of_another_part(item: pytest.Item) -> bool:
    """Return whether a slow test is left out; only the matrix divides its files."""
    file, _, name = item.nodeid.partition("::")
    group = name if MATRIX in file else file
    is_of_part = zlib.crc32(group.encode()) % PARTS == PART % PARTS
    return item.get_closest_marker("slow") is not None and not is_of_part


def pytest_collection_finish() -> None:
    """Let no collection of garbage look at TensorFlow, Keras and all tests again.

    Each `keras.utils.clear_session()` collects garbage, which took longer than most of
    the tests that call it.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose commands are missing; where CI=true, fail it instead.

    On a developer's machine a missing package should not stand in the way of the other
    tests. In CI a skipped test would look like a passed one for ever. Tests that need a
    graphics card are skipped in both; `make test-gpu` counts them.
    """
    if item.get_closest_marker("gpu") and not has_gpu():
        pytest.skip("this test needs a graphics card that TensorFlow finds")
    for marker in item.iter_markers("requires"):
        for command in marker.args:
            if find_command(command) is None:
                reason = missing_command(command)
                if os.environ.get("CI") == "true":
                    pytest.fail(reason, pytrace=False)
                pytest.skip(reason)


@functools.cache
def has_gpu() -> bool:
    """Return whether TensorFlow finds a GPU; or stands in a processor for one."""
    if "GPU_TESTS_ON_CPU" in os.environ:
        return True
    return may_use_gpu(os.environ) and count_gpus(os.environ) > 0


def find_command(command: str) -> str | None:
    """Find a command; what is built for this Python beside it, active or not."""
    if command in BUILT_COMMANDS:
        return shutil.which(command, path=os.path.dirname(sys.executable))
    return shutil.which(command)


def missing_command(command: str) -> str:
    """Say which command a test lacks, and which Debian package or command brings it."""
    if command in BUILT_COMMANDS:
        return (
            f"this test needs the command {command!r}, which is not beside "
            f"{sys.executable}. Run: {BUILT_COMMANDS[command]}"
        )
    package = DEBIAN_PACKAGES[command]
    return (
        f"this test needs the command {command!r}, which is not on PATH. "
        f"Install the Debian package {package!r}."
    )


@pytest.fixture(autouse=True)
def unchanged_environment() -> Iterator[None]:
    """Start without a cluster in the environment; fail if the test leaves a trace.

    This fixture must not use `monkeypatch`: being set up before it, it looks at the
    environment after `monkeypatch` has put everything back.
    """
    for name in [*os.environ]:
        if name.startswith(OF_LAUNCHERS):
            del os.environ[name]
    before = _environment()
    yield
    after = _environment()
    changed = sorted(
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    )
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    assert not changed, (
        f"the test changed the environment and did not put it back: {changed}. "
        "Use monkeypatch.setenv, or pass `env` as an argument."
    )


def _environment() -> dict[str, str]:
    """Return the environment without what libraries write into it."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in WRITTEN_BY_LIBRARIES
    }


@pytest.fixture(scope="session")
def fork_all(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[pytest.MonkeyPatch], None]]:
    """Return a function that makes a test fork its processes; see `fork_server.py`.

    The first worker of xdist that needs that process starts it, for all.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    path = folder / "fork_server"
    with open(folder / "fork_server.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = _hold(path)
        if held is None:
            path.unlink(missing_ok=True)
            subprocess.run([sys.executable, FORK_SERVER, path], check=True)
            held = _hold(path)
    assert held is not None

    def fork_all(patch: pytest.MonkeyPatch) -> None:
        patch.setenv("PYTHONPATH", STARTUP, prepend=os.pathsep)
        patch.setenv("TESTS_FORK_SERVER", str(path))

    with held:
        yield fork_all


def _hold(path: Path) -> socket.socket | None:
    """Return a connection, as long as which the fork server stays; None without one."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        held.connect(str(path))
        held.send(b"hold")
        if held.recv(16) == b"held":
            return held
    except OSError:
        pass
    held.close()
    return None


@pytest.fixture
def forked(
    fork_all: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fork the Python processes of this test, which otherwise start as a user's do."""
    fork_all(monkeypatch)
