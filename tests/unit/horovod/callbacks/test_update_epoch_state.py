"""UpdateEpochStateCallback counts each epoch once, however `fit` is called."""

import types

import pytest

pytestmark = pytest.mark.requires("horovodrun")


@pytest.mark.parametrize("by_initial_epoch", [True, False])
def test_an_interrupted_training_counts_to_its_end(hvd, fit, by_initial_epoch):
    state = types.SimpleNamespace(epoch=0)
    update = hvd.callbacks.UpdateEpochStateCallback(state)
    seen = []
    fit(update, epochs=2)
    seen.append(state.epoch)
    # After an interruption `fit` is called for what is left (horovod#2844).
    if by_initial_epoch:
        fit(update, epochs=5, initial_epoch=state.epoch)
    else:
        fit(update, epochs=5 - state.epoch)
    seen.append(state.epoch)

    assert seen == [2, 5]


def test_it_is_the_same_under_elastic(hvd):
    assert (
        hvd.elastic.UpdateEpochStateCallback is hvd.callbacks.UpdateEpochStateCallback
    )
