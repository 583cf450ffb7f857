"""Snapshots of a training run between two steps, over all ranks."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.callbacks.backup.files import StateFiles, from_bytes, to_bytes
from tfdist.callbacks.backup.state import (
    SavedVariables,
    TrainingVariables,
    callback_states,
    random_states,
    set_callback_states,
    set_random_states,
)
from tfdist.callbacks.rates import set_state_of_rates, state_of_rates
from tfdist.collectives.base import Collective
from tfdist.compat.keras.hooks import any_hooks_of_model
from tfdist.compat.keras.learning_rates import build_from, built_from
from tfdist.experimental.virtual_ranks import arithmetic_of

# The version of the format; increment it when the content changes.
FORM = 2

_FACTS = "facts"
_VARIABLE, _RANK, _REMEMBERED = "variable ", "rank ", "remembered "
# A broadcast needs twice its size in memory, so send it in pieces.
_PIECE_BYTES = 8 * 2**20
# Up to this size, content is sent together with its length.
_SMALL_BYTES = 2**18


@dataclass(frozen=True)
class Snapshot:
    """Everything that a training run needs to continue."""

    # JSON values.
    facts: Mapping[str, Any]
    variables: SavedVariables
    # Arrays of callbacks.
    remembered: Mapping[str, np.ndarray]
    # Seed and generators of each rank.
    randoms: Sequence[Mapping[str, Any]]

    @classmethod
    def from_bytes(cls, content: bytes) -> "Snapshot":
        """Return the snapshot that `take` packed."""
        arrays = from_bytes(content)
        facts = _from_json(arrays[_FACTS])
        ranks = [
            from_bytes(content.tobytes()) for content in _named(arrays, _RANK).values()
        ]
        randoms = [_from_json(own.pop(_FACTS)) for own in ranks]
        equal = _named(arrays, _VARIABLE)
        variables = SavedVariables(
            facts["variables"], equal, ranks, facts.get("raw", 0)
        )
        return cls(facts, variables, _named(arrays, _REMEMBERED), randoms)

    def random_of(self, rank: int) -> Mapping[str, Any]:
        """Return a rank's seed and generators; a new rank reuses another's."""
        return self.randoms[rank % len(self.randoms)]

    def restore(
        self, model: keras.Model, collective: Collective, others: Sequence[Any]
    ) -> None:
        """Restore the variables except metrics, and the states of callbacks."""
        variables = TrainingVariables(model, with_metrics=False)
        variables.restore(self.variables, collective, metrics=False)
        set_state_of_rates(model, self.facts["rates"])
        set_callback_states(others, self.facts["callbacks"], self.remembered)

    def restore_counts(self, model: keras.Model, collective: Collective) -> None:
        """Restore the metrics and the random number generators."""
        if self.facts["step"]:
            variables = TrainingVariables(model, with_metrics=True)
            variables.restore(self.variables, collective, metrics=True)
        set_random_states(self.random_of(collective.rank)["now"])

    def check(self, model: keras.Model, num_batches: int | None, folder: str) -> None:
        """Build optimizers, and refuse a snapshot of another format, model or data."""
        form = self.facts.get("form")
        if form != FORM:
            raise ValueError(
                "backup_dir holds a state that another version of tfdist has written. "
                f"Received: {folder} with states of form {form}, not {FORM}. Continue "
                "with that version, or remove the folder to train from the beginning."
            )
        _check_arithmetic(self.facts.get("arithmetic"), model, folder)
        # A step of the user's own may build them, which is too late to restore them.
        build_from(model, self.facts.get("built", ()))
        step, length = self.facts["step"], self.facts["num_batches"]
        variables = TrainingVariables(model, with_metrics=step > 0)
        variables.check(self.variables.specs, folder, self.variables.raw)
        if step and None not in (length, num_batches) and length != num_batches:
            raise ValueError(
                "backup_dir holds a state from within an epoch of other data. "
                f"Received: {folder} after step {step} of {length}, where an epoch now "
                f"has {num_batches} steps. Give fit the data and the global batch size "
                "of before, or remove the folder to train from the beginning."
            )
        if step % model.steps_per_execution:
            raise ValueError(
                "backup_dir holds a state from between steps that are now made in one "
                f"go. Received: {folder} after step {step}, with steps_per_execution="
                f"{model.steps_per_execution}. Compile the model with one that divides "
                "it, or remove the folder to train from the beginning."
            )


def _check_arithmetic(saved: str | None, model: keras.Model, folder: str) -> None:
    """Refuse a state whose bits depend on another arithmetic."""
    mine = arithmetic_of(model)
    if saved != mine:
        raise ValueError(
            "backup_dir holds a state whose bits come from another arithmetic. "
            f"Received: {folder} with {saved or 'no virtual_ranks'}, where this "
            f"strategy has {mine or 'no virtual_ranks'}. Make the strategy that was "
            "trained with, or remove the folder to train from the beginning."
        )


def read_newest(files: StateFiles, collective: Collective) -> Snapshot | None:
    """Return the newest snapshot on all ranks; only the chief reads files."""
    content, problem = None, None
    if collective.rank == 0:
        try:
            files.lock()
            files.tidy()
            content = files.newest()
        except OSError as error:
            files.unlock()
            problem = str(error)
    problem = collective.exchange("reading states", problem)[0]
    if problem is not None:
        raise OSError(problem)
    content = broadcast_bytes(collective, content, "the state")
    return None if content is None else Snapshot.from_bytes(content)


def take(
    model: keras.Model,
    collective: Collective,
    others: Sequence[Any],
    facts: Mapping[str, Any],
    began: Mapping[str, Any],
) -> Callable[[], bytes] | None:
    """Copy the state of a training run; return its packing on the chief."""
    # `began` is the rank's random state at the start. The writer's thread packs.
    hooks = any_hooks_of_model(model)
    if hooks is not None:
        hooks.metrics_reset(model)
    variables = TrainingVariables(model, with_metrics=facts["step"] > 0)
    specs, equal, own = variables.take(collective)
    randoms = {"began": began, "now": random_states()}
    packed = to_bytes({_FACTS: _json(randoms), **own})
    ranks = gather_bytes(collective, packed, "states of ranks")
    if collective.rank > 0:
        return None
    remembered: dict[str, np.ndarray] = {}
    whole = {
        **facts,
        "form": FORM,
        "arithmetic": arithmetic_of(model),
        "callbacks": callback_states(others, remembered),
        "rates": state_of_rates(model),
        "built": built_from(model),
        "variables": specs,
        "raw": len(variables.raw),
    }
    return lambda: to_bytes(
        {
            _FACTS: _json(whole),
            **{f"{_VARIABLE}{name}": value for name, value in equal.items()},
            **{f"{_REMEMBERED}{name}": value for name, value in remembered.items()},
            **{
                f"{_RANK}{rank}": np.frombuffer(content, np.uint8)
                for rank, content in enumerate(ranks)
            },
        }
    )


def gather_bytes(collective: Collective, content: bytes, name: str) -> list[bytes]:
    """Return the content of every rank, by rank, on rank 0 only."""
    if collective.size == 1:
        return [content]
    lengths = collective.exchange(f"the lengths of {name}", len(content))
    if max(lengths) <= _SMALL_BYTES:
        texts = collective.control.gather(name, base64.b64encode(content).decode())
        return [base64.b64decode(text) for text in texts]
    joined = collective.all_gather(_tensor(content), name=name).numpy().tobytes()
    ends = np.cumsum(lengths).tolist()
    return [
        joined[end - length : end] for end, length in zip(ends, lengths, strict=True)
    ]


def broadcast_bytes(
    collective: Collective, content: bytes | None, name: str
) -> bytes | None:
    """Return the content of rank 0 on all ranks; None if it is empty or None."""
    if collective.size == 1:
        return content
    own = content if content is not None and collective.rank == 0 else b""
    length = collective.exchange(f"the length of {name}", len(own))[0]
    pieces = []
    for start in range(0, length, _PIECE_BYTES):
        count = min(_PIECE_BYTES, length - start)
        piece = own[start : start + count] or bytes(count)
        (given,) = collective.broadcast([_tensor(piece)], name=name)
        pieces.append(given.numpy().tobytes())
    return b"".join(pieces) or None


def _tensor(content: bytes) -> tf.Tensor:
    """Return bytes as a vector of integers."""
    return tf.constant(np.frombuffer(content, np.uint8))


def _named(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose names start with a prefix, without the prefix."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _json(value: Mapping[str, Any]) -> np.ndarray:
    """Encode JSON as an array."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _from_json(array: np.ndarray) -> Any:
    """Decode an array that `_json` encoded."""
    return json.loads(array.tobytes())
