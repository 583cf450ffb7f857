"""What the message of a ClusterError shows."""

import pickle

from tfdist.testing import ClusterError, ClusterResult, RankError

TRACEBACK = "Traceback (most recent call last):\n  File ...\nValueError: bad\n"


def result_of(**changes):
    fields = {
        "values": (1, None),
        "logs": ("", "before\n" + TRACEBACK),
        "exit_codes": (0, 1),
        "errors": (None, RankError("ValueError", "bad", TRACEBACK)),
        "failed_rank": 1,
        "problem": "rank 1 of 2 raised ValueError: bad",
    }
    return ClusterResult(**(fields | changes))


def test_an_exception_is_shown_once_with_what_was_printed_before():
    assert str(ClusterError(result_of())) == (
        "rank 1 of 2 raised ValueError: bad\n\n"
        "Traceback (most recent call last):\n  File ...\nValueError: bad\n\n"
        "The last lines of rank 1:\nbefore"
    )


def test_without_an_exception_the_log_is_shown():
    log = "".join(f"line {number}\n" for number in range(100))
    result = result_of(
        logs=("", log), errors=(None, None), problem="rank 1 was killed."
    )

    message = str(ClusterError(result))

    assert message.startswith(
        "rank 1 was killed.\n\nThe last lines of rank 1:\nline 60"
    )
    assert message.endswith("line 99")


def test_without_a_failed_rank_every_log_is_shown():
    result = result_of(
        logs=("a\n", ""), errors=(None, None), failed_rank=None, problem="Too late."
    )

    assert str(ClusterError(result)) == (
        "Too late.\n\nThe last lines of rank 0:\na\n\nRank 1 printed nothing."
    )


def test_it_can_be_pickled():
    error = pickle.loads(pickle.dumps(ClusterError(result_of())))

    assert error.result == result_of()
