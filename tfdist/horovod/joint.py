"""Calls that all ranks of a process set make together."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.cluster.detect import is_elastic
from tfdist.collectives.base import Collective
from tfdist.collectives.horovod.current import collective_of
from tfdist.horovod.native import native


def tie(process_set: Any) -> Collective | None:
    """Connect the ranks of a process set once, unless the job is elastic."""
    # Horovod only says that some rank is gone, or hangs. Once per process set, not per
    # optimizer: a rank that alone reloads an optimizer must not wait for the others.
    is_joint = process_set.included() and process_set.size() > 1
    if not is_joint or is_elastic():
        return None
    with tf.init_scope():
        return collective_of(process_set)


@contextmanager
def joint_call(
    what: str, process_set: Any = native.global_process_set
) -> Iterator[None]:
    """Mark a block in which ranks wait for each other, unless the job is elastic.

    Ranks that wait in different calls, or for a rank that has ended, then raise an
    error that names them, where Horovod would wait forever.
    """
    collective = tie(process_set) if tf.executing_eagerly() else None
    if collective is None:
        yield
        return
    with collective.call(what):
        yield
