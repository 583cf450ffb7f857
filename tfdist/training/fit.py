"""A `fit` on all ranks: its start, callback decisions and ends of epochs."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import tensorflow as tf

from tfdist.cluster.detect import LateTFConfig
from tfdist.collectives.base import Collective, check_root_rank
from tfdist.compat.keras.compile_checks import caveats, check_stateless
from tfdist.compat.keras.learning_rates import learning_rates_of, set_learning_rates
from tfdist.compat.user_warnings import warn_user
from tfdist.training.metrics import MetricsOfRanks
from tfdist.training.state import NotedState, average_state, start_equal
from tfdist.training.step import state_of_layers

_LONGEST_TEXT = 2000


class RankFits:
    """The `FitHooks` of a strategy whose processes communicate by a collective."""

    def __init__(self, collective: Collective, noted: NotedState) -> None:
        self._collective = collective
        self._noted = noted
        self._metrics = MetricsOfRanks(collective)
        self._late_tf_config = LateTFConfig()
        self._started: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        # What each model was warned of.
        self._told: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
        # Models with steps since `epoch_ended`.
        self._stepped: WeakSet[Any] = WeakSet()
        # The rank whose variables a `fit` starts from, until it has started.
        self._root_ranks: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._fits: WeakKeyDictionary[Any, Decisions | None] = WeakKeyDictionary()

    @contextmanager
    def fitting(self, trainer: Any, root_rank: int) -> Iterator[None]:
        """Mark a `fit` of a model, which all ranks run together."""
        if warning := self._late_tf_config.warning():
            warn_user(warning)
        check_root_rank(root_rank, self._collective.size)
        # A callback of a `fit` may fit the same model.
        outer = {trainer: self._fits[trainer]} if trainer in self._fits else {}
        self._root_ranks[trainer] = root_rank
        self._fits[trainer] = None
        try:
            yield
        finally:
            self._fits.pop(trainer)
            self._fits.update(outer)
            self._root_ranks.pop(trainer, None)

    def build(self, trainer: Any, *, is_single_step: bool) -> None:
        """Give all ranks equal states; for single steps, only the first time."""
        start = trainer.optimizer or trainer
        started = self._started.get(trainer, lambda: None)()
        if is_single_step and started is start:
            return
        told = self._told.setdefault(trainer, set())
        if self._collective.rank == 0:
            # Another `compile` may have thawed layers, or brought another loss.
            for caveat in [each for each in caveats(trainer) if each not in told]:
                warn_user(f"{caveat} See docs/guarantees.md.")
                told.add(caveat)
        self._started[trainer] = ref(start)
        self.synchronize(trainer)

    def synchronize(self, trainer: Any) -> None:
        """Broadcast the variables of the rank that the `fit` starts from."""
        check_stateless(trainer)
        if trainer in self._stepped:
            # A callback predicts, say: the broadcast must not lose the state of others.
            self.epoch_ended(trainer)
        root_rank = self._root_ranks.pop(trainer, 0)
        start_equal(trainer, self._collective, root_rank)

    def training_begins(self, trainer: Any, watched: Sequence[str]) -> None:
        """Create the decisions of a `fit`, given the batch events its callbacks use."""
        if trainer in self._fits:
            self._fits[trainer] = Decisions(trainer, self._collective, watched)

    def restored(
        self, trainer: Any, epoch: int | None, *, restores: bool
    ) -> int | None:
        """Take rank 0's variables and first epoch if any rank restores variables."""
        if trainer not in self._fits:
            return epoch
        given = [restores, epoch]
        by_rank = self._collective.exchange("callbacks that restore", given)
        if not any(restores for restores, _ in by_rank):
            return epoch
        self.synchronize(trainer)
        return by_rank[0][1]

    def callbacks_called(self, trainer: Any, event: str) -> None:
        """Agree on the decisions of callbacks after an event of theirs."""
        decisions = self._fits.get(trainer)
        if decisions is not None:
            decisions.after(event)

    def note_epoch(self, number: int, began: float, logs: Mapping[str, float]) -> None:
        """Record an epoch that ends; see `FitHooks.note_epoch`."""
        self._collective.recorder.note_epoch(number, began, logs)

    def has_written(self, file: str, error: Exception | None = None) -> None:
        """Tell the other ranks that the chief has written a file, or why not."""
        outcome = True if error is None else _described(error)
        self._collective.control.tell(f"the file {file}", outcome)

    def wait_for_file(self, file: str) -> bool:
        """Wait for the chief, and raise its error; see `FitHooks.wait_for_file`."""
        outcome = self._collective.control.wait_for_chief(f"the file {file}")
        if not isinstance(outcome, bool):
            raise _error_of(*outcome)
        return outcome

    def epoch_ended(self, trainer: Any) -> None:
        """Average the layer state that steps have left different between ranks."""
        self._stepped.discard(trainer)
        variables = state_of_layers(trainer)
        if not variables:
            return
        mine = self._noted.apart_in(trainer, variables)
        by_rank = self._collective.exchange("state that differs", mine)
        apart = sorted({i for positions in by_rank for i in positions})
        if apart:
            average_state([variables[i] for i in apart], self._collective)

    def step_returned(self, trainer: Any, what: str, logs: Any) -> None:
        """Record that a step of all ranks has run, and its logs."""
        self._stepped.add(trainer)
        self._metrics.note_logs(trainer, what, logs)

    def metrics_result(
        self, trainer: Any, result: Callable[[Any], Any], logs: Any
    ) -> Any:
        """Call `result(logs)` with the metric states of all ranks."""
        return self._metrics.result(trainer, result, logs)

    def metrics_reset(self, trainer: Any) -> None:
        """Forget what the metrics were over all ranks."""
        self._metrics.forget(trainer)

    def states_of_all(self, variables: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Return metric variables with their values over all ranks."""
        return self._metrics.states_of_all(variables)


class Decisions:
    """Callback decisions of one `fit`, on which all ranks agree.

    If one rank stops, all stop. If several ranks change the learning rate, the lowest
    rank's change applies. Ranks agree at the start and end of each epoch, and at each
    batch if a callback of any rank watches batches.
    """

    def __init__(
        self, model: Any, collective: Collective, watched: Sequence[str]
    ) -> None:
        self._model, self._collective = model, collective
        by_rank = collective.exchange("callbacks that look at batches", list(watched))
        self._events = {"epoch_begin", "epoch_end"}.union(*by_rank)
        self._stops = False
        self._wishes_to_stop = False
        self._rates = learning_rates_of(model)

    def after(self, event: str) -> None:
        """Agree after an event, or defer this rank's decision to the epoch's end."""
        if event in self._events:
            self._agree()
        elif event == "batch_end":
            self._wishes_to_stop |= self._model.stop_training
            self._model.stop_training = self._stops

    def _agree(self) -> None:
        """Apply the decisions of all ranks on every rank."""
        stops = bool(self._model.stop_training or self._wishes_to_stop)
        mine = [stops, learning_rates_of(self._model)]
        by_rank = self._collective.exchange("decisions", mine)
        self._stops = any(stops for stops, _ in by_rank)
        self._wishes_to_stop = False
        self._model.stop_training = self._stops
        changed = [rates for _, rates in by_rank if rates != self._rates]
        if changed:
            self._rates = changed[0]
            set_learning_rates(self._model, self._rates)


def _described(error: Exception) -> list[str]:
    """Return the module, the name and the text of an error, for other ranks."""
    kind = type(error)
    return [kind.__module__, kind.__qualname__, str(error)[:_LONGEST_TEXT]]


def _error_of(module: str, name: str, text: str) -> Exception:
    """Return an error of rank 0 as one of this rank, of the same type if possible."""
    kind = getattr(sys.modules.get(module), name, None)
    error = None
    if isinstance(kind, type) and issubclass(kind, Exception):
        is_of_ops = issubclass(kind, tf.errors.OpError)
        # Some types need more than a text.
        with suppress(Exception):
            error = kind(None, None, text) if is_of_ops else kind(text)
    error = error or RuntimeError(f"{name}: {text}")
    error.add_note("Rank 0, the chief, has raised this error for all ranks.")
    return error
