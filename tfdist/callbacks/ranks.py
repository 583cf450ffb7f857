"""The ranks that train a model, and a line that the chief prints per epoch."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster.detect import detect_membership
from tfdist.collectives.base import Collective
from tfdist.collectives.horovod.current import started_collective, started_rank
from tfdist.collectives.single import SingleCollective
from tfdist.compat.user_warnings import warn_user
from tfdist.recorder.step_times import StepTimes, steady_times
from tfdist.strategies.parameter_server.strategy import ParameterServerStrategy


def collective_of(model: keras.Model) -> Collective:
    """Return the collective of a model's strategy, of Horovod or of one process."""
    collective = _of_strategy(model) or started_collective()
    if collective is None:
        _warn_if_apart(model.distribute_strategy)
    return collective or SingleCollective()


def is_chief_of(model: keras.Model) -> bool:
    """Return whether this process is rank 0 of the ranks that train a model."""
    collective = _of_strategy(model)
    return not (started_rank() if collective is None else collective.rank)


def has_strategy(model: keras.Model) -> bool:
    """Return whether a model was created under a strategy of several processes."""
    return _of_strategy(model) is not None


def is_on_its_own(model: keras.Model) -> bool:
    """Return whether ranks train a model through Horovod, without a strategy."""
    return not has_strategy(model) and started_rank() is not None


def servers_of(model: keras.Model) -> ParameterServerStrategy | None:
    """Return the strategy of a model if it has parameter servers."""
    strategy = model.distribute_strategy
    return strategy if isinstance(strategy, ParameterServerStrategy) else None


def processes_of(model: keras.Model) -> int:
    """Return how many processes train a model; all ranks must call it."""
    servers = servers_of(model)
    if servers is not None:
        return servers.workers
    strategy = model.distribute_strategy
    # TensorFlow's own strategies scale by replicas.
    return max(collective_of(model).size, int(strategy.num_replicas_in_sync))


def times_since(model: keras.Model, seconds: float) -> list[float] | None:
    """Return this rank's mean times of a step since a time, if any; see `StepTimes`."""
    return steady_times(collective_of(model).recorder.step_times(seconds))


def times_of_ranks(by_rank: Sequence[list[float] | None]) -> list[StepTimes]:
    """Return the times of all ranks by `times_since`; none if a rank has none."""
    times = [StepTimes(*each) for each in by_rank if each is not None]
    return times if len(times) == len(by_rank) else []


def _warn_if_apart(strategy: tf.distribute.Strategy) -> None:
    """Warn on the chief if each process of a job trains a model of its own."""
    # Other strategies of TensorFlow have replicas, or parameter servers.
    has_servers = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    if strategy.num_replicas_in_sync > 1 or has_servers:
        return
    place = detect_membership()
    if place.trains and place.is_chief and place.size > 1:
        warn_user(
            f"Each of the {place.size} processes trains a model of its own, because "
            "the model was made outside of a strategy. Make one first of all, "
            "strategy = tfdist.strategies.AllReduceStrategy(), and the model in its "
            "scope()."
        )


class EpochLine(keras.callbacks.Callback):
    """Callback that prints a line per epoch on the chief."""

    # Printed at the next epoch or the end, after Keras's progress bar.
    _line = ""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Discard the line of an earlier `fit` that was interrupted."""
        self._line = ""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print the line of the previous epoch."""
        self._print_line()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Print the last line."""
        self._print_line()

    def _print_line(self) -> None:
        """Print the pending line, if any."""
        if self._line and is_chief_of(self.model):
            print(self._line, flush=True)
        self._line = ""


def _of_strategy(model: keras.Model) -> Collective | None:
    """Return the collective of a model's strategy, if it has one."""
    return getattr(model.distribute_strategy, "collective", None)
