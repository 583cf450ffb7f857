"""Finding TensorFlow without importing it."""

import sys
from importlib import metadata

import pytest

from tfdist.horovod_build import installed as module
from tfdist.horovod_build.installed import BuildError, find_tensorflow, same_version


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Be in an environment that holds nothing; return its folder."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    return tmp_path


def write(site, *, distribution="tensorflow", include=True):
    (site / "tensorflow").mkdir()
    (site / "tensorflow/__init__.py").write_text("raise ImportError('imported')\n")
    if include:
        (site / "tensorflow/include").mkdir()
    info = site / f"{distribution.replace('-', '_')}-2.21.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {distribution}\nVersion: 2.21.0\n")


@pytest.mark.parametrize("distribution", ["tensorflow", "tensorflow-cpu", "tf-nightly"])
def test_it_is_found_under_each_of_its_names(site, distribution):
    write(site, distribution=distribution)

    found = find_tensorflow()
    assert found.version == "2.21.0"
    assert found.include == site / "tensorflow/include"
    assert "tensorflow" not in sys.modules


def test_none(site):
    with pytest.raises(BuildError, match="Run: pip install tensorflow") as raised:
        find_tensorflow()
    assert raised.value.exit_code == 2


def test_one_without_headers(site):
    write(site, include=False)

    with pytest.raises(BuildError, match="Received: TensorFlow 2.21.0, without /"):
        find_tensorflow()


def test_the_installed_one():
    assert find_tensorflow().version in {
        metadata.version(name)
        for name in module._DISTRIBUTIONS
        if name in {d.metadata["Name"] for d in metadata.distributions()}
    }


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2.21.0", "2.21.0", True),
        ("2.21.0", "2.21.1", False),
        ("2.1.10", "2.11.0", False),
        ("2.22.0-rc1", "2.22.0rc1", True),
        ("2.22.0-dev20260401", "2.22.0.dev20260401", True),
    ],
)
def test_versions_as_tensorflow_and_pip_write_them(one, other, same):
    assert same_version(one, other) is same
