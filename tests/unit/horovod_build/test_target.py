"""Whether pip may install, in pretended environments."""

import sys

import pytest

from tfdist.horovod_build import toolchain as target
from tfdist.horovod_build.installed import BuildError


@pytest.fixture
def managed(tmp_path, monkeypatch):
    """Be a Python of the system, which pip must leave alone."""
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    monkeypatch.setattr(target.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)


def test_this_environment():
    target.check_target({})


def test_without_pip(monkeypatch):
    monkeypatch.setattr(target.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(BuildError, match="without pip. Run: .*-m ensurepip") as raised:
        target.check_target({})
    assert raised.value.exit_code == 2


@pytest.mark.usefixtures("managed")
def test_a_python_of_the_system():
    with pytest.raises(BuildError, match="which the system manages. Use a virtual env"):
        target.check_target({})


@pytest.mark.usefixtures("managed")
def test_who_insists_may():
    target.check_target({"PIP_BREAK_SYSTEM_PACKAGES": "1"})


@pytest.mark.usefixtures("managed")
def test_a_virtual_environment_of_such_a_python(monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/home/user/.venv")

    target.check_target({})
