"""The state of a training between two steps, as bytes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist.callbacks.run_state import Saved
from tfdist.callbacks.state_files import from_bytes, to_bytes

_FACTS = "facts"
_VARIABLE, _RANK, _REMEMBERED = "variable ", "rank ", "remembered "


@dataclass(frozen=True)
class TrainingState:
    """What a training needs to go on.

    Args:
        facts: What JSON can hold.
        variables: The variables.
        remembered: Arrays that callbacks remember.
        randoms: The seeds and the generators of each rank.
    """

    facts: Mapping[str, Any]
    variables: Saved
    remembered: Mapping[str, np.ndarray]
    randoms: Sequence[Mapping[str, Any]]

    def random_of(self, rank: int) -> Mapping[str, Any]:
        """Return the seeds of a rank; of one that was not there, those of another."""
        return self.randoms[rank % len(self.randoms)]


def pack_rank(random: Mapping[str, Any], own: Mapping[str, np.ndarray]) -> bytes:
    """Return what one rank has for itself.

    Args:
        random: Its seeds and generators, as JSON can hold them.
        own: Its own values of variables, by place.
    """
    return to_bytes({_FACTS: _json(random), **own})


def pack(
    facts: Mapping[str, Any],
    equal: Mapping[str, np.ndarray],
    remembered: Mapping[str, np.ndarray],
    ranks: Sequence[bytes],
) -> bytes:
    """Return a state.

    Args:
        facts: What JSON can hold; under "variables" what variables there are.
        equal: The values that all ranks have, by place.
        remembered: Arrays that callbacks remember.
        ranks: What `pack_rank` returned on each.
    """
    return to_bytes(
        {
            _FACTS: _json(facts),
            **{f"{_VARIABLE}{name}": value for name, value in equal.items()},
            **{f"{_REMEMBERED}{name}": value for name, value in remembered.items()},
            **{
                f"{_RANK}{rank}": np.frombuffer(content, np.uint8)
                for rank, content in enumerate(ranks)
            },
        }
    )


def unpack(content: bytes) -> TrainingState:
    """Return the state that `pack` has made bytes of.

    Args:
        content: The bytes.

    Raises:
        Damaged: If they are not whole.
    """
    arrays = from_bytes(content)
    facts = _from_json(arrays[_FACTS])
    ranks = [
        from_bytes(content.tobytes()) for content in _named(arrays, _RANK).values()
    ]
    randoms = [_from_json(own.pop(_FACTS)) for own in ranks]
    saved = Saved(facts["variables"], _named(arrays, _VARIABLE), ranks)
    return TrainingState(facts, saved, _named(arrays, _REMEMBERED), randoms)


def _named(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays of one sort, by the rest of their names."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _json(value: Mapping[str, Any]) -> np.ndarray:
    """Write facts as an array."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _from_json(array: np.ndarray) -> Any:
    """Undo `_json`."""
    return json.loads(array.tobytes())
