"""What callbacks that change the learning rate have in common."""

from collections.abc import Sequence
from typing import Any

import keras

from tfdist.callbacks.epoch_line import EpochLine
from tfdist.callbacks.peers import collective_of
from tfdist.callbacks.rates import Rates
from tfdist.callbacks.run_file import processes_of


class RateCallback(EpochLine):
    """Changes the learning rate, alike on all ranks.

    It begins with the first epoch of a `fit`, not before it: by then all ranks have
    what one of them may have restored.

    Args:
        initial_learning_rate: See `Rates`.

    Raises:
        ValueError: If a rate is not a positive number.
    """

    def __init__(
        self, initial_learning_rate: float | Sequence[float] | None = None
    ) -> None:
        super().__init__()
        _check_initial(initial_learning_rate)
        self.initial_learning_rate = initial_learning_rate
        self._begun: Rates | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forget an earlier `fit`."""
        super().on_train_begin(logs)
        self._begun = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Begin with the rates that all ranks have."""
        super().on_epoch_begin(epoch, logs)
        if self._begun is None:
            who = type(self).__name__
            self._begun = Rates(self.model, who, self.initial_learning_rate)
            self._check_equal(who)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keep what others have made of the rate."""
        super().on_train_end(logs)
        if self._begun is not None:
            self._begun.end()

    @property
    def _rates(self) -> Rates:
        """The rates of the model."""
        assert self._begun is not None, "there are rates from the first epoch on"
        return self._begun

    def _check_equal(self, who: str) -> None:
        """Refuse ranks that would go on with different rates."""
        facts = self._rates.facts()
        everyone = collective_of(self.model).exchange(f"the rates of {who}", facts)
        if any(others != facts for others in everyone):
            raise RuntimeError(
                f"{who} needs the same learning rates on every rank. Received: "
                f"{everyone}, by rank: the base, what it is scaled by and the "
                "multiplier of each optimizer. Compile with the same optimizer and "
                "give the same callbacks to fit on every rank."
            )


def growth_of(model: keras.Model) -> int:
    """Return how many times larger a step's batch is if each process has a whole one.

    Args:
        model: The model; all ranks have to ask.

    Raises:
        ValueError: If a step has the batch of one process, however many there are.
    """
    if getattr(model.distribute_strategy, "consistency", "sync") != "sync":
        raise ValueError(
            "size must be given where each step has the batch of one worker. Received: "
            "size=None, and parameter servers that are not in step "
            f"(consistency={model.distribute_strategy.consistency!r}). Give how many "
            "times larger that batch is, or leave out the callback."
        )
    return processes_of(model)


def _check_initial(initial: Any) -> None:
    """Refuse what is no learning rate."""
    rates = initial if isinstance(initial, list | tuple) else [initial]
    for rate in [] if initial is None else rates:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0:
            raise ValueError(
                "initial_learning_rate must be a positive number, or a list of such. "
                f"Received: initial_learning_rate={initial!r}. Give the rate that "
                "suits the batch of one process."
            )
