"""What one process has seen of the training, and the file that holds it."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]


@dataclass
class Entry:
    """A variable that is compared.

    Args:
        kind: "weights", "state", "optimizer" or "metrics".
        dtype: The type of its numbers.
        aggregation: How Keras joins the values of several replicas.
    """

    kind: str
    dtype: str
    aggregation: str = "none"


@dataclass
class Layer:
    """A layer, as it was met in the forward pass.

    Args:
        name: Its path.
        type: The name of its class.
        dtype: The type that it computes in.
        variables: The names of the variables that no layer inside of it has.
    """

    name: str
    type: str
    dtype: str
    variables: list[str]


@dataclass
class Batch:
    """The rows that one process has got in one step.

    Args:
        rows: How many.
        fingerprint: The sum of a hash of each row, modulo 2**64: what several
            processes get together adds up to that of the whole batch.
        distinct: How many different rows there are.
    """

    rows: int
    fingerprint: int
    distinct: int


@dataclass
class Recording:
    """What one process has seen.

    Args:
        rank: Its number.
        entries: The variables by name.
        layers: In the order of the forward pass.
        batches: By step.
        losses: By step; None where there was no single one.
        seeds: Short forms of the states of TensorFlow's, Python's and NumPy's random
            numbers when the training began.
        draws: What drew random numbers in a step, in words.
        switched_off: The layers that drew none because they were switched off.
        batch_norms: The layers that normalise by the statistics of their own rows.
        custom_steps: The methods of Keras that the script overrides.
        is_keras_step: Whether Keras weighs the ranks, and not the script.
        own_datasets: Whether the script shards its data itself.
        was_jitted: Whether the script asks for `jit_compile`.
        initial: The weights before the first step.
        raw_gradients: What the first `tape.gradient` returned.
        applied_gradients: What the first optimizer got.
        states: The variables after a step, by step; of ranks other than 0 digests,
            but for metrics.
    """

    rank: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    seeds: list[str] = field(default_factory=list)
    draws: list[str] = field(default_factory=list)
    switched_off: list[str] = field(default_factory=list)
    batch_norms: list[str] = field(default_factory=list)
    custom_steps: list[str] = field(default_factory=list)
    is_keras_step: bool = True
    own_datasets: bool = False
    was_jitted: bool = False
    initial: Arrays = field(default_factory=dict)
    raw_gradients: Arrays = field(default_factory=dict)
    applied_gradients: Arrays = field(default_factory=dict)
    states: dict[int, Arrays] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return len(self.batches)

    def write(self, folder: Path) -> None:
        """Leave the recording in a folder, all of it or nothing.

        Args:
            folder: Where.
        """
        names: list[tuple[str, str]] = []
        arrays: Arrays = {}
        for group, values in self._groups().items():
            for name, value in values.items():
                arrays[str(len(names))] = value
                names.append((group, name))
        facts = asdict(
            replace(self, initial={}, raw_gradients={}, applied_gradients={}, states={})
        )
        with _arrays_file(folder, self.rank).open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        unfinished = folder / f"rank.{self.rank}.unfinished"
        unfinished.write_text(json.dumps({"facts": facts, "names": names}))
        unfinished.replace(_facts_file(folder, self.rank))

    @classmethod
    def read(cls, folder: Path, rank: int) -> "Recording | None":
        """Read what a process has left in a folder.

        Args:
            folder: Where.
            rank: Its number.

        Returns:
            The recording; None if the process has left none.
        """
        file = _facts_file(folder, rank)
        if not file.exists():
            return None
        content = json.loads(file.read_text())
        facts = content["facts"]
        facts["entries"] = {k: Entry(**v) for k, v in facts["entries"].items()}
        facts["layers"] = [Layer(**layer) for layer in facts["layers"]]
        facts["batches"] = [Batch(**batch) for batch in facts["batches"]]
        recording = cls(**facts)
        with np.load(_arrays_file(folder, rank), allow_pickle=False) as arrays:
            for number, (group, name) in enumerate(content["names"]):
                recording._group(group)[name] = arrays[str(number)]
        return recording

    def _groups(self) -> dict[str, Arrays]:
        """Return all arrays by the name of their group; a step is a group."""
        steps = {str(step): state for step, state in self.states.items()}
        groups = ("initial", "raw_gradients", "applied_gradients")
        return {group: getattr(self, group) for group in groups} | steps

    def _group(self, group: str) -> Arrays:
        """Return the group of a name."""
        if group.isdecimal():
            return self.states.setdefault(int(group), {})
        arrays: Arrays = getattr(self, group)
        return arrays


def _facts_file(folder: Path, rank: int) -> Path:
    return folder / f"rank.{rank}.json"


def _arrays_file(folder: Path, rank: int) -> Path:
    return folder / f"rank.{rank}.npz"
