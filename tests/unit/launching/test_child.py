"""Loading a function in another process, and leaving its result."""

import pickle
import subprocess
from pathlib import Path

import pytest

from tfdist.launching.function import child

FILE = """
class Group:
    @staticmethod
    def double():
        pass

def name():
    return __name__

def unpicklable():
    return (number for number in [1])

"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "code.py"
    path.write_text(FILE)
    return str(path)


@pytest.fixture
def call(tmp_path, file):
    """Return a function that runs child.py and returns exit code, result and stderr."""

    def run(module, name, *args):
        child.write_job(tmp_path, pickle.dumps(args), reference=(module, file, name))
        done = subprocess.run(
            child.command(tmp_path),
            env={"TFDIST_RANK": "3"},
            capture_output=True,
            text=True,
            check=False,
        )
        result = child.result_file(tmp_path, 3)
        content = pickle.loads(result.read_bytes()) if result.exists() else None
        return done.returncode, content, done.stderr

    return run


def test_a_module_that_cannot_be_imported_is_loaded_from_its_file(call):
    assert call("tests.not.importable", "name") == (
        0,
        ("tests.not.importable", None),
        "",
    )


def test_a_name_that_leads_to_another_file_is_not_imported(call):
    assert call("json", "name")[1] == ("json", None)


def test_an_importable_module_is_imported(file, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(file).parent))

    function = child.load_function("code", str(Path(file)), "Group.double")

    assert function.__name__ == "double"


def test_a_function_that_is_not_there(call):
    code, (_, error), _ = call("code_x", "missing")

    assert code == 1
    assert error[:2] == ("AttributeError", "module 'code_x' has no attribute 'missing'")


def test_a_value_that_cannot_be_pickled(call):
    code, (_, error), _ = call("code_x", "unpicklable")

    assert (code, error[0]) == (1, "TypeError")
    assert "must return what can be pickled. Received: generator" in error[1]
