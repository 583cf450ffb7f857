"""Snapshots of ranks, the sentence on all of them, and the list of their stacks."""

import threading
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfdist.liveness.stacks import Snapshot, describe, list_stacks, take_snapshot

NAMES = {rank: f"rank {rank}" for rank in range(4)}
HERE = Path(__file__).name


def test_a_rank_runs_a_function_of_the_user():
    snapshot = take_snapshot()

    name = test_a_rank_runs_a_function_of_the_user.__name__
    assert snapshot.doing.startswith(f"runs `{name}()` at line ")
    assert snapshot.doing.endswith(f" of {HERE}")
    assert "snapshot = take_snapshot()" in snapshot.stacks[0]


def test_a_rank_that_waits_for_a_generator_reads_input():
    """The generator runs in a thread of TensorFlow, not in the main one."""
    seen = {}
    has_begun, may_go_on = threading.Event(), threading.Event()

    def rows():
        has_begun.set()
        may_go_on.wait(300)
        yield np.ones(3)

    def look():
        has_begun.wait(300)
        # The generator goes on to its next line when it pleases.
        while "may_go_on.wait(300)" not in "".join(seen.get("stacks", ())):
            seen["snapshot"] = take_snapshot()
            seen["stacks"] = seen["snapshot"].stacks
        may_go_on.set()

    looking = threading.Thread(target=look, name="tfdist test")
    looking.start()
    signature = tf.TensorSpec((3,), tf.float64)
    data = tf.data.Dataset.from_generator(rows, output_signature=signature)
    assert len([*data]) == 1
    looking.join(300)

    snapshot = seen["snapshot"]
    assert snapshot.reads_input
    assert snapshot.doing.startswith("reads input, `rows()` at line ")
    assert "may_go_on.wait(300)" in "".join(snapshot.stacks)
    assert "look" not in "".join(snapshot.stacks)


def test_the_busy_come_first_and_equal_ranks_together():
    sleeps, none = Snapshot("runs `work()` at line 3 of train.py", ("s",)), Snapshot()
    snapshots = {0: Snapshot("a"), 1: none, 2: sleeps, 3: Snapshot("b")}
    waiting = dict.fromkeys((0, 3), "train_step (joint call 7), for 9 s")

    assert describe(snapshots, waiting, NAMES) == (
        "rank 1 does not answer; rank 2 runs `work()` at line 3 of train.py; "
        "each of rank 0 and rank 3 waits in train_step (joint call 7), for 9 s."
    )


def test_of_many_ranks_the_first_are_named():
    names = {rank: f"rank {rank}" for rank in range(64)}
    snapshots = dict.fromkeys(names, Snapshot("runs `f()`"))

    assert describe(snapshots, {}, names) == (
        "each of 64 ranks (rank 0, rank 1, rank 2, rank 3, ...) runs `f()`."
    )


def test_a_rank_that_reads_within_its_step_is_busy():
    snapshots = {
        0: Snapshot("runs `f()` at ..."),
        1: Snapshot("reads input, `g()`", reads_input=True),
    }

    text = describe(snapshots, {0: "train_step", 1: "train_step"}, NAMES)

    assert text == "rank 1 reads input, `g()`; rank 0 waits in train_step."


def test_equal_stacks_are_listed_once():
    same = Snapshot("", ("  a\n", "  b\n"))
    snapshots = {0: same, 1: Snapshot("", ("  c\n",)), 2: same, 3: Snapshot()}

    assert list_stacks(snapshots, NAMES) == (
        "Stack of rank 0 and rank 2, the innermost call last:\n  a\n"
        "Stack of rank 0 and rank 2, the innermost call last:\n  b\n"
        "Stack of rank 1, the innermost call last:\n  c\n"
    )
