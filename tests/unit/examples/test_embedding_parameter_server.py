"""The embedding example in one process: its data, and what it refuses.

That it trains well is in tests/distributed/test_parameter_server_example.py.
"""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "examples" / "embedding_parameter_server.py"
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


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--dataset=none", "value should be one of <made|movielens>"),
        ("--epochs=1", "Start the program with `tfdist run --workers 2 --ps 1`"),
    ],
)
def test_it_says_what_is_wrong(option, message):
    done = subprocess.run(
        [sys.executable, PROGRAM, option], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert message in done.stdout + done.stderr


def test_ratings_are_shaped_as_real_ones():
    done = subprocess.run(
        [sys.executable, "-c", RATINGS, PROGRAM.parent],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "done\n", done.stderr
