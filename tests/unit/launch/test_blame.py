"""Who failed first, by hand-made clocks."""

import pytest

from tfdist.launch.blame import Failure, first_failure


@pytest.mark.parametrize(
    ("failures", "rank"),
    [
        ([Failure(2, 5.0)], 2),
        ([Failure(0, 5.1), Failure(1, 5.0)], 1),
        # Rank 0 prints its traceback, cleans up, and exits after its peer.
        ([Failure(0, 7.0, 5.0), Failure(1, 6.0)], 0),
        ([Failure(0, 7.0, 5.0), Failure(1, 6.0, 4.9)], 1),
        # The traceback was logged long before, and about something else.
        ([Failure(0, 70.0, 5.0), Failure(1, 69.0)], 1),
        # What is read late counts no later than the end.
        ([Failure(0, 5.0, 5.2), Failure(1, 5.1)], 0),
        # Of two at the same time, the lower.
        ([Failure(0, 5.0), Failure(1, 5.0)], 0),
        # A peer saw the closed connection before anybody was told of the kill.
        ([Failure(0, 9.0, 5.0), Failure(1, 5.2, was_killed=True)], 1),
        # Killed because the other had failed: the traceback is much older.
        ([Failure(0, 9.0, 5.0), Failure(1, 8.0, was_killed=True)], 0),
    ],
)
def test_first_failure(failures, rank):
    assert first_failure(failures) == rank
