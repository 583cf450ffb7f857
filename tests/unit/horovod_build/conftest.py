"""An environment whose packages are files made here, and a script for its Python."""

import json
import sys
import sysconfig

import pytest

from tfdist.horovod_build.installed import Installed, TensorFlow

LIBRARY = f"tensorflow/mpi_lib{sysconfig.get_config_var('EXT_SUFFIX')}"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return the folder of an environment that has no packages."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("tensorflow", "horovod", "pip"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.fixture
def write(site):
    """Return a function that installs a package, which must not be imported."""

    def write(package, version, distribution=None, folder=site):
        distribution = distribution or package
        (folder / package).mkdir(parents=True)
        code = "raise ImportError('imported')\n"
        (folder / f"{package}/__init__.py").write_text(code)
        info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {distribution}\nVersion: {version}\n")
        return folder / package

    return write


@pytest.fixture
def tensorflow(write):
    """Return a function that installs a TensorFlow with some headers."""

    def tensorflow(*names):
        include = write("tensorflow", "2.21.0") / "include"
        include.mkdir()
        for name in names:
            path = include / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return TensorFlow("2.21.0", include)

    return tensorflow


@pytest.fixture
def horovod(write):
    """Return a function that installs a Horovod with a library of some bytes."""

    def horovod(content, version="0.28.1", built_for="2.21.0", **options):
        folder = write("horovod", version, **options)
        (folder / "metadata.json").write_text(json.dumps({"tensorflow": built_for}))
        (folder / LIBRARY).parent.mkdir()
        (folder / LIBRARY).write_bytes(content)
        return Installed(version, folder, built_for)

    return horovod


@pytest.fixture
def python(tmp_path, monkeypatch):
    """Return a function that makes a shell script the interpreter."""

    def python(script):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return python
