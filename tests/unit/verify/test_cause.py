"""Seeds that differ by rank."""

import pytest

from tfdist.verify.cause import Cause, blame_seeds

OTHER = Cause("other", "Something was seen.", "Do something.")


def test_equal_seeds_are_not_to_blame(runs):
    _, many = runs

    assert blame_seeds(many, OTHER) is OTHER


@pytest.mark.parametrize(
    ("number", "generator"),
    [(0, r"tf.random (by rank: 1, 5)"), (1, "Python's random"), (2, "np.random")],
)
def test_seeds_that_differ_are(runs, number, generator):
    _, many = runs
    many[1].seeds[number] = "5"

    cause = blame_seeds(many, OTHER)

    assert cause.name == "a seed that differs by rank"
    assert cause.evidence.endswith(f"with different seeds of {generator}.")
    assert cause.evidence.startswith("Something was seen. ")
