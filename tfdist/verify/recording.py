"""Recording of the training in one process, and its file."""

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]
_MODULUS = 2**64
# Up to this size the state after every step is kept, above it of the first and last.
_STATES_BYTES = 2**28


@dataclass
class Entry:
    """Variable that is compared.

    Args:
        kind: "weights", "state", "optimizer" or "metrics".
        dtype: The type of its numbers.
        aggregation: How Keras combines the values of several replicas.
    """

    kind: str
    dtype: str
    aggregation: str = "none"


@dataclass
class Layer:
    """Layer of the forward pass.

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
    """Rows that one process got in one step.

    Args:
        rows: How many.
        fingerprint: The sum of a hash of each row, modulo 2**64, so that those of
            several processes add up to that of the global batch.
        distinct: How many different rows there are.
    """

    rows: int
    fingerprint: int
    distinct: int


@dataclass
class Recording:
    """Data of one process that a comparison needs.

    Args:
        rank: Its rank.
        entries: The variables by name.
        layers: In the order of the forward pass.
        batches: By step.
        losses: By step; None where there was no single one.
        seeds: Digests of the states of TensorFlow's, Python's and NumPy's random
            numbers when the training began.
        draws: Descriptions of what drew random numbers in a step.
        switched_off: The random layers that were switched off.
        batch_norms: The layers that normalise by the statistics of their own rows.
        custom_steps: The methods of Keras that the script overrides.
        is_keras_step: Whether Keras weighs the ranks, and not the script.
        own_datasets: Whether the script shards its data itself.
        was_jitted: Whether the script asks for `jit_compile`.
        initial: The weights before the first step.
        raw_gradients: The result of the first `tape.gradient`.
        applied_gradients: The gradients that the optimizer got first.
        states: The variables after a step, by step; on ranks other than 0 their
            digests, except for metrics.
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
        """The number of steps that were taken."""
        return len(self.batches)

    def end_step(
        self,
        batch: Batch,
        loss: float | None,
        state: dict[str, tuple[Entry, Any]],
        wanted_steps: int,
    ) -> None:
        """Add the end of a step: its batch, its loss, and the variables after it."""
        self.batches.append(batch)
        self.losses.append(loss)
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
        """Write the recording to a folder, whole or not at all."""
        unfinished = folder / f"rank.{self.rank}.unfinished"
        unfinished.write_bytes(pickle.dumps(self))
        unfinished.replace(_file(folder, self.rank))

    @classmethod
    def read(cls, folder: Path, rank: int) -> "Recording | None":
        """Read the recording of a rank from a folder; None if there is none."""
        try:
            content = _file(folder, rank).read_bytes()
        except FileNotFoundError:
            return None
        # Our own child wrote it, in a folder that only this user can read.
        recording: Recording = pickle.loads(content)
        return recording


def batch_of(leaves: Sequence[Any], own: int | None = None) -> Batch:
    """Describe the first `own` rows of a batch, whatever their order.

    Example:
        >>> whole = batch_of([np.arange(6).reshape(3, 2)])
        >>> parts = [batch_of([np.arange(6).reshape(3, 2)[i:i + 1]]) for i in range(3)]
        >>> sum(part.fingerprint for part in parts) % 2**64 == whole.fingerprint
        True
    """
    rows = min((len(leaf) for leaf in leaves), default=0)
    rows = rows if own is None else min(rows, own)
    hashes = [_hash_row(leaves, row) for row in range(rows)]
    return Batch(rows, sum(hashes) % _MODULUS, len(set(hashes)))


def joined(batches: Sequence[Batch]) -> Batch:
    """Combine the parts of a global batch; `distinct` is that of the largest part."""
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
        # Strings come as objects, which have no bytes of their own.
        is_text = leaf.dtype == object
        content = repr(np.asarray(part).tolist()).encode() if is_text else b""
        state.update(content or np.ascontiguousarray(part).tobytes())
    return int.from_bytes(state.digest(), "little")


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank.{rank}.pickle"
