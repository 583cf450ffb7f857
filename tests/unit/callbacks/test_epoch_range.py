"""Which steps are set, and by which epoch; schedules in `fit` are tested with each."""

import pytest

from tfdist.callbacks.epoch_range import EpochRange


class Given(EpochRange):
    """Notes by what it would set each step."""

    def __init__(self, start_epoch, end_epoch, staircase, steps_per_epoch=None):
        super().__init__(start_epoch, end_epoch, staircase, steps_per_epoch)
        self.epochs = []

    def _set(self, epoch):
        self.epochs.append(epoch)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, None, True), [0, 1, 2]),
        ((1, None, False), [1.0, 1.5, 2.0, 2.5]),
        ((1, 2, True), [1]),
        ((0, 1, False, 4), [0.0, 0.25]),
        ((2, 2, False), []),
    ],
)
def test_each_step_of_the_range_is_set_in_two_fits(fit, arguments, expected):
    given = Given(*arguments)
    for _ in range(2):
        fit(given, steps=2, epochs=3)

    assert given.epochs == expected * 2


@pytest.mark.parametrize(
    ("arguments", "is_refused"),
    [((0, None, False), True), ((0, 0, False), False), ((0, None, True), False)],
)
def test_only_steps_that_are_set_must_be_known(model, arguments, is_refused):
    given = Given(*arguments)
    given.set_model(model)
    given.set_params({"steps": None})
    if not is_refused:
        given.on_train_begin()
        return
    with pytest.raises(
        ValueError,
        match=r"^Given must know the steps of an epoch\. Received: steps_per_epoch=None"
        r", and data of unknown length\. Give steps_per_epoch to the callback\.$",
    ):
        given.on_train_begin()


def test_what_is_set_is_for_each_kind_to_say():
    with pytest.raises(NotImplementedError):
        EpochRange(0, None, True, None)._set(0)
