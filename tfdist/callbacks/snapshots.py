"""Taking the state of a training, and giving it back."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfdist.callbacks.bytes_of_ranks import broadcast_bytes, gather_bytes
from tfdist.callbacks.callback_states import callback_states, set_callback_states
from tfdist.callbacks.random_states import random_states, set_random_states
from tfdist.callbacks.rates import set_state_of_rates, state_of_rates
from tfdist.callbacks.run_state import RunVariables
from tfdist.callbacks.state_files import StateFiles
from tfdist.callbacks.training_state import TrainingState, pack, pack_rank, unpack
from tfdist.collectives import Collective
from tfdist.compat.keras.hooks import any_hooks_of_model

# What is in a state; counted up when that changes.
FORM = 1


def read_newest(files: StateFiles, collective: Collective) -> TrainingState | None:
    """Return the newest state, on all ranks; the chief alone reads.

    Args:
        files: The states.
        collective: The ranks.

    Raises:
        OSError: If the chief cannot read them.
    """
    content, problem = None, None
    if collective.rank == 0:
        try:
            files.tidy()
            content = files.newest()
        except OSError as error:
            problem = str(error)
    problem = collective.exchange("reading states", problem)[0]
    if problem is not None:
        raise OSError(problem)
    content = broadcast_bytes(collective, content, "the state")
    return None if content is None else unpack(content)


def take(
    model: keras.Model,
    collective: Collective,
    others: Sequence[Any],
    facts: Mapping[str, Any],
    began: Mapping[str, Any],
) -> Callable[[], bytes] | None:
    """Copy the state of a training; all ranks have to.

    Args:
        model: What is trained, between two steps.
        collective: The ranks.
        others: The callbacks that may remember something.
        facts: Where the training is.
        began: The seeds and generators of this rank when it began.

    Returns:
        On the chief what makes bytes of it, which takes time; None on others.
    """
    hooks = any_hooks_of_model(model)
    if hooks is not None:
        hooks.metrics_reset(model)
    variables = RunVariables(model, with_metrics=facts["step"] > 0)
    specs, equal, own = variables.take(collective)
    randoms = {"began": began, "now": random_states()}
    ranks = gather_bytes(collective, pack_rank(randoms, own), "states of ranks")
    if collective.rank > 0:
        return None
    remembered: dict[str, np.ndarray] = {}
    whole = {
        **facts,
        "form": FORM,
        "callbacks": callback_states(others, remembered),
        "rates": state_of_rates(model),
        "variables": specs,
    }
    return lambda: pack(whole, equal, remembered, ranks)


def restore(
    state: TrainingState,
    model: keras.Model,
    collective: Collective,
    others: Sequence[Any],
) -> None:
    """Give back the variables, but for the metrics, and what callbacks remember.

    Args:
        state: The state.
        model: The model.
        collective: The ranks.
        others: The callbacks.
    """
    variables = RunVariables(model, with_metrics=False)
    variables.set_others(state.variables, collective.rank, collective.size)
    set_state_of_rates(model, state.facts["rates"])
    set_callback_states(others, state.facts["callbacks"], state.remembered)


def restore_counts(
    state: TrainingState, model: keras.Model, collective: Collective
) -> None:
    """Give back what the steps to come go on with: metrics, and generators.

    Args:
        state: The state.
        model: The model.
        collective: The ranks.
    """
    if state.facts["step"]:
        variables = RunVariables(model, with_metrics=True)
        variables.set_metrics(state.variables, collective.rank, collective.size)
    set_random_states(state.random_of(collective.rank)["now"])


def check(
    state: TrainingState, model: keras.Model, num_batches: int | None, where: str
) -> None:
    """Refuse a state that is not of this training.

    Args:
        state: The state.
        model: The model.
        num_batches: How many batches an epoch has now; None if nobody knows.
        where: The folder.

    Raises:
        ValueError: If the model, the optimizer, the data or the form are others.
    """
    form = state.facts.get("form")
    if form != FORM:
        raise ValueError(
            "backup_dir holds a state that another version of tfdist has written. "
            f"Received: {where} with states of form {form}, not {FORM}. Go on with "
            "that version, or remove the folder to train from the beginning."
        )
    step, length = state.facts["step"], state.facts["num_batches"]
    variables = RunVariables(model, with_metrics=step > 0)
    variables.check(state.variables.specs, where)
    if step and None not in (length, num_batches) and length != num_batches:
        raise ValueError(
            "backup_dir holds a state from the midst of an epoch of other data. "
            f"Received: {where} after step {step} of {length}, where an epoch now has "
            f"{num_batches} steps. Give fit the data and the global batch size of "
            "before, or remove the folder to train from the beginning."
        )


def numbers_in(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the logs that are numbers, as JSON can hold them.

    Args:
        logs: What a step has returned.
    """
    arrays = {name: np.asarray(value) for name, value in logs.items()}
    return {name: float(array) for name, array in arrays.items() if not array.ndim}
