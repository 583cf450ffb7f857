"""What callbacks decide on one rank holds for all: when to stop, how fast to learn."""

from typing import Any

from tfdist.collectives import Collective
from tfdist.compat.keras.learning_rates import learning_rate_variables, optimizers_of


class Decisions:
    """The decisions of one `fit`, on which all ranks agree.

    One rank that stops stops all. The learning rate is that of the rank that changed
    it; of several that did, the first. Agreeing costs a small message at the beginning
    and the end of an epoch; and one a batch if a callback looks at batches, because it
    may decide there.

    Args:
        model: What is trained.
        collective: How the ranks talk.
        watches_begin: Whether a callback of this rank looks at beginnings of batches.
        watches_end: Whether one looks at their ends.
    """

    def __init__(
        self,
        model: Any,
        collective: Collective,
        *,
        watches_begin: bool,
        watches_end: bool,
    ) -> None:
        self._model, self._collective = model, collective
        watched = collective.exchange(
            "callbacks that look at batches", [watches_begin, watches_end]
        )
        self._votes_at_begin, self._votes_at_end = map(any, zip(*watched, strict=True))
        self._stops = False
        self._wishes_to_stop = False
        self._rates = self._own_rates()

    def batch_begins(self) -> None:
        """Agree before a batch, if any rank may have decided something."""
        if self._votes_at_begin:
            self.agree()

    def batch_ended(self) -> None:
        """Agree after a batch, or put a lonely decision off to the epoch's end."""
        if self._votes_at_end:
            self.agree()
            return
        self._wishes_to_stop |= self._model.stop_training
        self._model.stop_training = self._stops

    def agree(self) -> None:
        """Let the decisions of every rank hold on all."""
        stops = bool(self._model.stop_training or self._wishes_to_stop)
        by_rank = self._collective.exchange("decisions", [stops, self._own_rates()])
        self._stops = any(stops for stops, _ in by_rank)
        self._wishes_to_stop = False
        self._model.stop_training = self._stops
        changed = [rates for _, rates in by_rank if rates != self._rates]
        if changed:
            self._rates = changed[0]
            for variable, rate in zip(self._variables(), self._rates, strict=True):
                variable.assign(rate)

    def _own_rates(self) -> list[float]:
        """Return this rank's learning rates, as far as they can be set."""
        return [float(variable.numpy()) for variable in self._variables()]

    def _variables(self) -> list[Any]:
        """Return the variables of the learning rates."""
        return [
            variable
            for optimizer in optimizers_of(self._model)
            for variable in learning_rate_variables(optimizer)
        ]
