"""What is said about packages of the system."""

import pytest

from tfdist.horovod_build.packages import how_to_install


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("make", "Debian and Ubuntu: apt-get install make; Fedora: dnf install make."),
        (
            "mpi",
            "Debian and Ubuntu: apt-get install libopenmpi-dev openmpi-bin; "
            "Fedora: dnf install openmpi-devel, then: module load mpi.",
        ),
    ],
)
def test_both_families_are_named(what, sentence):
    assert how_to_install(what) == sentence
