"""The memory of a process whose training is watched."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.verify.fingerprint import batch_of, digest
from tfdist.verify.recording import Entry, Recording

# Up to here the state after every step is kept, above it of the first and the last.
_STATES_BYTES = 2**28


class Recorder:
    """Takes what is computed in each step, and keeps what a comparison needs.

    Args:
        rank: The number of this process.
        steps: After how many steps there is enough.
    """

    def __init__(self, rank: int, steps: int) -> None:
        self.recording = Recording(rank)
        self._wanted = steps

    @property
    def has_enough(self) -> bool:
        """Whether all steps that are wanted have been seen."""
        return self.recording.steps >= self._wanted

    def start(self, weights: dict[str, Any], seeds: Sequence[str]) -> None:
        """Take the weights before the first step; what comes later is left alone.

        Args:
            weights: By name.
            seeds: Short forms of the states of the random numbers.
        """
        if not self.recording.seeds:
            self.recording.seeds = [*seeds]
            self.recording.initial = weights

    def take(self, group: str, items: dict[str, Any]) -> None:
        """Take what belongs to one step.

        Args:
            group: Which part of the step.
            items: By name.
        """
        if group == "raw_gradients" and not self.recording.raw_gradients:
            self.recording.raw_gradients = items
        elif group == "applied_gradients" and not self.recording.applied_gradients:
            self.recording.applied_gradients = items

    def end_step(
        self,
        leaves: Sequence[Any],
        own: int | None,
        loss: float | None,
        state: dict[str, tuple[Entry, Any]],
    ) -> None:
        """Take the end of a step.

        Args:
            leaves: The arrays of the batch.
            own: How many of their rows count; None for all.
            loss: What was differentiated, if that was one number.
            state: The variables after the step, by name.
        """
        self.recording.batches.append(batch_of(leaves, own))
        self.recording.losses.append(loss)
        self.recording.entries.update({name: e for name, (e, _) in state.items()})
        step = self.recording.steps
        states = self.recording.states
        size = sum(value.nbytes for _, value in state.values())
        if step > 2 and size * self._wanted > _STATES_BYTES:
            del states[step - 1]
        states[step] = {
            name: self._short(entry, value) for name, (entry, value) in state.items()
        }

    def _short(self, entry: Entry, value: Any) -> Any:
        """Return what is kept of a value: all ranks but the first hold the same."""
        if self.recording.rank == 0 or entry.kind == "metrics":
            return np.array(value)
        return digest(value)
