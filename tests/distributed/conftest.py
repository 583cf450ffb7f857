"""What all tests of several processes share, and the modules of the equality matrix."""

import os
from pathlib import Path

import pytest
from equality_matrix import Matrix

# The first test of the matrix waits for the rows of several modules. Their processes
# have a limit of their own.
MATRIX_SECONDS = 3000
# Where Python looks for `sitecustomize`.
STARTUP = str(Path(__file__).with_name("startup"))


def pytest_collection_modifyitems(items):
    """Let the tests of the matrix wait for it; in CI, let none go without Horovod."""
    for item in items:
        if "cells" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(MATRIX_SECONDS))
            # Elsewhere TensorFlow takes its place.
            if os.environ.get("CI") == "true":
                item.add_marker(pytest.mark.requires("horovodrun"))


@pytest.fixture(scope="session")
def matrix(request):
    """What the chosen tests ask for; see `equality_matrix`."""
    return Matrix(request.session.items)


@pytest.fixture(scope="module")
def cells(request, matrix):
    """What the rows of a module end with."""
    return matrix.cells(request.module)


@pytest.fixture(scope="module", autouse=True)
def quick_start(request):
    """Let the processes that tests start import no more than they need.

    A module that starts programs which need scikit-learn or matplotlib has the marker
    `whole_environment`.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("whole_environment") is None:
            patch.setenv("PYTHONPATH", STARTUP, prepend=os.pathsep)
        yield
