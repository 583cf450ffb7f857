"""The examples with parameter servers in one process: data and flags.

That they train well is in tests/distributed.
"""

import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parents[3] / "examples"
RATINGS = """
import sys
sys.path.insert(0, sys.argv.pop())
from embedding_parameter_server import make_ratings

user, movie, rating = make_ratings(500, 50, 20000)
again = make_ratings(500, 50, 20000)
assert all((a == b).all() for a, b in zip((user, movie, rating), again))
assert len(user) == len(movie) == len(rating) == 20000
assert 0 <= user.min() and user.max() < 500
assert 0 <= movie.min() and movie.max() < 50
assert set(rating) == {half / 2 for half in range(1, 11)}, set(rating)
_, counts = __import__("numpy").unique(user, return_counts=True)
assert counts.max() > 10 * counts.mean()
print("done")
"""


def run(*words):
    """Return what a Python program prints."""
    done = subprocess.run(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def test_ratings_are_shaped_as_real_ones():
    assert run("-c", RATINGS, PROGRAMS).endswith("done\n")


def test_a_flag_of_the_imported_program_that_would_have_no_effect():
    printed = run(PROGRAMS / "digits_parameter_server.py", "--strategy=all_reduce")

    assert "Unknown command line flag 'strategy'" in printed
