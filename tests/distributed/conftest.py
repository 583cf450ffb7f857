"""What the modules of the equality matrix share."""

import os

import pytest
from equality_matrix import Matrix

# The first test of the matrix waits for the rows of several modules. Their processes
# have a limit of their own.
MATRIX_SECONDS = 3000


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
