"""What every test gets: a clean environment, and readable reasons to skip."""

import os
import shutil
from collections.abc import Iterator

import pytest

# Before the first import of TensorFlow; the processes that tests start inherit it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# Commands that a test may ask for with `@pytest.mark.requires("taskset")`, and the
# Debian package that holds each. `.ci/run` installs what Debian does not bring itself.
DEBIAN_PACKAGES = {
    "taskset": "util-linux",
}

# Variables that a library writes when it is imported, and pytest with every test.
WRITTEN_BY_LIBRARIES = (
    "ENABLE_RUNTIME_UPTIME_TELEMETRY",
    "HDF5_PLUGIN_PATH",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "PYTEST_CURRENT_TEST",
    "TF2_BEHAVIOR",
    "TPU_ML_PLATFORM",
    "TPU_ML_PLATFORM_VERSION",
)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose commands are missing; where CI=true, fail it instead.

    On a developer's machine a missing package should not stand in the way of the other
    tests. In CI a skipped test would look like a passed one for ever.
    """
    for marker in item.iter_markers("requires"):
        for command in marker.args:
            if shutil.which(command) is None:
                reason = missing_command(command)
                if os.environ.get("CI") == "true":
                    pytest.fail(reason, pytrace=False)
                pytest.skip(reason)


def missing_command(command: str) -> str:
    """Say which command a test lacks and which Debian package holds it."""
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
        if name == "TF_CONFIG" or name.startswith("TFDIST_"):
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
