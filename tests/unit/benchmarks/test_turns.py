"""The order of turns, and the processes that are left out."""

import subprocess
import sys
import threading

import pytest

from tfdist.benchmarks.turns import Turn, TurnKeeper

SECONDS = 120


def run_members(keeper, groups, rounds):
    """Let a thread for each member of each group take turns; return what they did."""
    done = []

    def member(group):
        with Turn(keeper.port, group=group) as turn:
            for _ in range(rounds[group]):
                turn.take()
                done.append(group)
                turn.pass_on()

    threads = [threading.Thread(target=member, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return done


def test_groups_work_one_after_the_other():
    with TurnKeeper([1, 2, 1]) as keeper:
        done = run_members(keeper, [2, 1, 0, 1], rounds={0: 3, 1: 3, 2: 3})

    assert done == [0, 1, 1, 2] * 3


def test_a_group_that_has_ended_is_left_out():
    with TurnKeeper([1, 1]) as keeper:
        done = run_members(keeper, [0, 1], rounds={0: 1, 1: 3})

    assert done == [0, 1, 1, 1]


MEMBER = """
import sys
from tfdist.benchmarks.turns import Turn
from tfdist.liveness.watchdog import start_watchdog
with Turn(int(sys.argv[1]), group=0, is_stopped=True) as turn:
    start_watchdog("rank 0", 1.0, if_stopped=True)
    for _ in range(3):
        turn.take()
        turn.pass_on()
"""


def test_a_process_is_stopped_while_another_has_its_turn(is_soon):
    with TurnKeeper([1, 1]) as keeper:
        member = subprocess.Popen([sys.executable, "-c", MEMBER, str(keeper.port)])
        stops = []
        with Turn(keeper.port, group=1) as turn:
            for _ in range(3):
                turn.take()
                stops.append(is_soon("T", member.pid))
                # For longer than a watchdog would wait.
                with pytest.raises(subprocess.TimeoutExpired):
                    member.wait(2.0)
                turn.pass_on()
        code = member.wait(SECONDS)

    assert stops == [True, True, True]
    assert code == 0


def test_the_keeper_ends_before_all_processes_connect():
    with TurnKeeper([2]) as keeper:
        turn = Turn(keeper.port, group=0)

    with turn, pytest.raises(ConnectionError, match="must outlive this one"):
        turn.take()


def test_no_process_works_before_all_are_connected():
    with TurnKeeper([1, 1]) as keeper, Turn(keeper.port, group=0) as first:
        taken = threading.Event()
        thread = threading.Thread(target=lambda: (first.take(), taken.set()))
        thread.start()
        early = taken.is_set()
        with Turn(keeper.port, group=1):
            assert taken.wait(SECONDS)
            first.pass_on()
        thread.join(SECONDS)

    assert not early
