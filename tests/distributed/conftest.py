"""What all tests of several processes share, and the modules of the equality matrix."""

import itertools
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
            # Elsewhere the other engines take its place.
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


@pytest.fixture(scope="module")
def asked(request):
    """The texts among the parameters of a module's chosen tests.

    Where the rows of a module share a job, tests have the names of those that they need
    as parameters, and the job runs no others.
    """
    items = [item for item in request.session.items if item.module is request.module]
    parameters = [item.callspec.params for item in items if hasattr(item, "callspec")]
    values = itertools.chain.from_iterable(each.values() for each in parameters)
    return {value for value in values if isinstance(value, str)}


@pytest.fixture(scope="module", autouse=True)
def quick_start(request):
    """Fork the Python processes that tests start.

    Those of a module with the marker `new_processes` are started as a user's are.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("new_processes") is None:
            request.getfixturevalue("fork_all")(patch)
        yield


@pytest.fixture
def settled(monkeypatch):
    """Give the ranks that this process starts more time to say what has failed."""
    monkeypatch.setattr("tfdist.launching.supervisor._SETTLE_SECONDS", 15.0)
