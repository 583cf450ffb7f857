"""One lower bound of each dependency, wherever it is written."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from tfdist.compat.keras import versions

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def bounds(requirements, operator):
    """Return the version that each requirement names with an operator."""
    given = [Requirement(one) for one in requirements]
    return {
        one.name: Version(specifier.version)
        for one in given
        for specifier in one.specifier
        if specifier.operator == operator
    }


def oldest():
    lines = (ROOT / "tests" / "oldest.txt").read_text().splitlines()
    return bounds([line for line in lines if not line.startswith("#")], "==")


def test_the_oldest_versions_are_the_lower_bounds():
    extras = [
        one for name in ("examples", "mpi", "report", "test") for one in EXTRAS[name]
    ]
    required = [*PROJECT["dependencies"], *extras]

    assert bounds(required, ">=") == oldest()


def test_the_oldest_keras_is_the_first_that_is_called_tested():
    assert oldest()["keras"].release[:2] == versions.OLDEST


def test_the_readme_names_the_oldest_pair():
    readme = " ".join((ROOT / "README.md").read_text().split())
    found = re.search(r"TensorFlow (\S+) or newer and Keras (\S+) or newer", readme)

    assert found is not None
    assert Version(found[1]) == oldest()["tensorflow"]
    assert Version(found[2]) == oldest()["keras"]
