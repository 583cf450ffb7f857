"""What is installed; the packages and files are made here."""

import os
import platform
import sys
from importlib import metadata

import pytest

import tfdist
from tfdist.horovod_build.installed import Installed
from tfdist_cli import env_software
from tfdist_cli.env_software import (
    horovod_facts,
    keras_facts,
    platform_facts,
    version_facts,
)


def test_versions(tmp_path, monkeypatch):
    for name, version in (("keras", "Version: 3.1\n"), ("tf_keras", "Version: 2.9\n")):
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\n{version}")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    assert version_facts() == {
        "tfdist": tfdist.__version__,
        "Python": platform.python_version(),
        "tensorflow": "not installed",
        "keras": "3.1",
        "numpy": "not installed",
        "horovod": "not installed",
        "tensorflow-datasets": "not installed",
        "absl-py": "not installed",
        "tf-keras": "2.9",
    }


@pytest.mark.parametrize("error", [KeyError("Version"), TypeError("None")])
def test_a_package_of_which_only_the_folder_is_left(monkeypatch, error):
    def broken(package):
        raise error

    monkeypatch.setattr(metadata, "version", broken)

    assert version_facts()["keras"] is None


def test_the_platform(tmp_path):
    (tmp_path / "etc").mkdir()
    text = 'NAME=x\n\nPRETTY_NAME="Debian 12 (a=b)"\n'
    (tmp_path / "etc/os-release").write_text(text)

    facts = platform_facts(tmp_path)

    assert facts["distribution"] == "Debian 12 (a=b)"
    assert facts["system"].startswith(platform.system())
    assert facts["python"] == sys.executable


@pytest.mark.parametrize("error", [ValueError, OSError])
def test_a_system_that_does_not_tell(tmp_path, monkeypatch, error):
    def unknown(name):
        raise error

    monkeypatch.setattr(os, "confstr", unknown)
    facts = platform_facts(tmp_path)

    assert (facts["distribution"], facts["c_library"]) == (None, None)


@pytest.fixture
def home(tmp_path):
    """Return what makes a home with a keras.json."""

    def make(text, folder=".keras"):
        (tmp_path / folder).mkdir()
        if text is not None:
            (tmp_path / folder / "keras.json").write_text(text)
        return tmp_path

    return make


def test_the_backend_of_the_file(home):
    folder = home('{"backend": "jax"}')

    assert keras_facts({}, folder) == {
        "backend": "jax",
        "set_by": str(folder / ".keras/keras.json"),
    }


@pytest.mark.parametrize("text", [None, "{}", '{"floatx": "float64"}'])
def test_the_backend_by_default(home, text):
    expected = {"backend": "tensorflow", "set_by": "Keras's default"}

    assert keras_facts({"KERAS_BACKEND": ""}, home(text)) == expected


def test_the_variable_comes_first(home):
    env = {"KERAS_BACKEND": "torch"}

    assert keras_facts(env, home('{"backend": "jax"}')) == {
        "backend": "torch",
        "set_by": "KERAS_BACKEND",
    }


def test_another_folder(home, tmp_path):
    elsewhere = home('{"backend": "jax"}', "of_keras") / "of_keras"

    assert keras_facts({"KERAS_HOME": str(elsewhere)}, tmp_path)["backend"] == "jax"


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_file_that_cannot_be_read(home, text):
    facts = keras_facts({}, home(text))

    assert facts["backend"] == "tensorflow"
    assert facts["set_by"].startswith("Keras's default, as ")


def test_horovod(monkeypatch, tmp_path):
    installed = Installed("0.28.1", tmp_path, "2.21.0", ("TensorFlow",))
    monkeypatch.setattr(env_software, "find_installed", lambda: installed)
    monkeypatch.setattr(env_software, "parts_in", lambda folder: ("gloo", "mpi"))

    assert horovod_facts() == {
        "folder": str(tmp_path),
        "built_for": "TensorFlow 2.21.0",
        "frameworks": ["TensorFlow"],
        "built_in": ["gloo", "mpi"],
    }


def test_a_horovod_without_tensorflow(monkeypatch, tmp_path):
    installed = Installed("0.28.1", tmp_path, None, ())
    monkeypatch.setattr(env_software, "find_installed", lambda: installed)

    facts = horovod_facts()

    assert facts["built_for"] == "TensorFlow unknown"
    assert (facts["frameworks"], facts["built_in"]) == ("none", None)


def test_no_horovod(monkeypatch):
    monkeypatch.setattr(env_software, "find_installed", lambda: None)

    assert set(horovod_facts().values()) == {"not installed"}
