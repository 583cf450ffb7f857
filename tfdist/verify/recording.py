"""Recording of the training in one process, stored in a file."""

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.first_step.comparison import Cause

Arrays = dict[str, Any]
_MODULUS = 2**64
# Up to this size the states of all steps are kept, above it only the first and last.
_STATES_BYTES = 2**28


@dataclass
class Entry:
    """Variable to compare."""

    kind: str  # "weights", "state", "optimizer" or "metrics".
    dtype: str
    aggregation: str = "none"  # How Keras combines the values of replicas.


@dataclass
class Layer:
    """Layer of the forward pass."""

    name: str
    type: str
    dtype: str  # The compute dtype.
    variables: list[str]  # Without the variables of inner layers.


@dataclass
class Batch:
    """Rows that one process got in one step."""

    rows: int
    # The sum of the row hashes modulo 2**64: parts add up to the global batch.
    fingerprint: int
    distinct: int  # The number of different rows.


@dataclass
class Recording:
    """Data of one process for a comparison."""

    rank: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    # TensorFlow's seed, and digests of Python's and NumPy's states, at the first step.
    seeds: list[str] = field(default_factory=list)
    # An ordered set of layers that normalise by the statistics of their own rows.
    batch_norms: dict[str, None] = field(default_factory=dict)
    is_keras_step: bool = True  # Whether Keras, not the script, weighs the ranks.
    own_datasets: bool = False  # Whether the script shards its data itself.
    is_float64_wanted: bool = False  # Whether the user has asked for it.
    initial: Arrays = field(default_factory=dict)
    # Passed to the first optimizer update.
    gradients: Arrays = field(default_factory=dict)
    # What the check of the first step has found, on rank 0.
    first_step: Cause | None = None
    # After each step; digests on ranks other than 0, except for metrics.
    states: dict[int, Arrays] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """The number of recorded steps."""
        return len(self.batches)

    def end_step(
        self, batch: Batch, state: dict[str, tuple[Entry, Any]], wanted_steps: int
    ) -> None:
        """Record the end of a step: its batch and its variables."""
        self.batches.append(batch)
        self.entries.update({name: entry for name, (entry, _) in state.items()})
        size = sum(value.nbytes for _, value in state.values())
        if self.steps > 2 and size * wanted_steps > _STATES_BYTES:
            del self.states[self.steps - 1]
        self.states[self.steps] = {
            name: np.array(value)
            if self.rank == 0 or entry.kind == "metrics"
            else digest(value)
            for name, (entry, value) in state.items()
        }

    def write(self, folder: Path) -> None:
        """Write the recording to a folder."""
        (folder / f"rank.{self.rank}.pickle").write_bytes(pickle.dumps(self))

    @classmethod
    def read(cls, folder: Path, rank: int) -> "Recording":
        """Read the recording of a rank from a folder."""
        # Our own child wrote it, in a folder that only this user can read.
        content = (folder / f"rank.{rank}.pickle").read_bytes()
        recording: Recording = pickle.loads(content)
        return recording


def batch_of(leaves: Sequence[Any], own: int | None = None) -> Batch:
    """Describe the first `own` rows of a batch, regardless of their order."""
    rows = min((len(leaf) for leaf in leaves), default=0)
    rows = rows if own is None else min(rows, own)
    hashes = [_hash_row(leaves, row) for row in range(rows)]
    return Batch(rows, sum(hashes) % _MODULUS, len(set(hashes)))


def joined(batches: Sequence[Batch]) -> Batch:
    """Combine the parts of a global batch; `distinct` is the largest of any part."""
    return Batch(
        sum(batch.rows for batch in batches),
        sum(batch.fingerprint for batch in batches) % _MODULUS,
        max(batch.distinct for batch in batches),
    )


def digest(array: Any) -> Any:
    """Return 16 bytes that are equal for arrays with the same bits."""
    content = np.ascontiguousarray(array).tobytes()
    return np.frombuffer(hashlib.blake2b(content, digest_size=16).digest(), np.uint8)


def _hash_row(leaves: Sequence[Any], row: int) -> int:
    state = hashlib.blake2b(digest_size=8)
    for leaf in leaves:
        part = leaf[row]
        # The bytes of object arrays, which hold strings, are pointers.
        is_text = leaf.dtype == object
        content = repr(np.asarray(part).tolist()).encode() if is_text else b""
        state.update(content or np.ascontiguousarray(part).tobytes())
    return int.from_bytes(state.digest(), "little")
