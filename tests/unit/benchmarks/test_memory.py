"""The peak of a process."""

import resource
from contextlib import nullcontext

from tfdist.benchmarks.memory import measure


class FreeTurn(nullcontext):
    """Always has the turn."""

    def take(self):
        self.taken = True

    def pass_on(self):
        self.passed_on = True


def test_the_peak_is_that_of_this_process_in_bytes():
    turn = FreeTurn()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    peak = measure(turn, distributed=False, processes=1, layers=1)

    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert before <= peak <= after
    assert turn.taken
    assert turn.passed_on
