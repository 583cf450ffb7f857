import importlib.metadata
import platform

import tfdist
from tfdist.launch import versions
from tfdist.launch.versions import installed_versions


def test_what_is_installed_here():
    found = installed_versions()

    assert platform.python_version().startswith(found["Python"] + ".")
    assert found["tfdist"] == tfdist.__version__
    assert found["Keras"] == importlib.metadata.version("keras")
    assert found["TensorFlow"] == importlib.metadata.version("tensorflow")


def test_tensorflow_has_several_names(monkeypatch):
    def version(name):
        if name != "tf-nightly":
            raise importlib.metadata.PackageNotFoundError
        return "2.99"

    monkeypatch.setattr(versions.importlib.metadata, "version", version)

    assert installed_versions()["TensorFlow"] == "2.99"
    assert installed_versions()["Keras"] == "none"
