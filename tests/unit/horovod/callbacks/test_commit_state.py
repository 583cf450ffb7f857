"""CommitStateCallback commits every few batches, and after every epoch."""

import pytest

pytestmark = pytest.mark.requires("horovodrun")


class State:
    def __init__(self, model):
        self.model = model
        self.steps = []

    def commit(self):
        self.steps.append(int(self.model.optimizer.iterations.numpy()))


def test_it_commits_every_third_batch_and_each_epoch(hvd, model, fit):
    state = State(model)
    commit = hvd.callbacks.CommitStateCallback(state, batches_per_commit=3)
    fit(commit, epochs=2)
    # The count begins anew, in the state as on ranks that have joined.
    fit(commit)

    assert state.steps == [3, 4, 6, 8, 11, 12]


def test_every_batch_is_the_default(hvd, model, fit):
    state = State(model)
    fit(hvd.elastic.CommitStateCallback(state))

    assert state.steps == [1, 2, 3, 4, 4]


def test_no_batches_are_refused(hvd):
    with pytest.raises(
        ValueError,
        match=r"^batches_per_commit must be positive\. Received: batches_per_commit=0",
    ):
        hvd.callbacks.CommitStateCallback(None, batches_per_commit=0)
