"""The variables of a model that is being trained, over ranks, as a file can hold them.

What ranks keep alike is written once. What each has for itself is written for each: the
parts of sums (metrics in the midst of an epoch, gradients that accumulate), and moving
statistics that follow each rank's own rows. As many ranks as there were get theirs back
to the bit; others share them out.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.training.step import state_of_layers

EQUAL, AVERAGED, SUMMED = "equal", "averaged", "summed"

# The path, the shape, the type and the kind of each variable.
Specs = Sequence[Sequence[Any]]
# By the place of the variable.
Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Saved:
    """The values of the variables of a model that was being trained.

    Args:
        specs: What variables they were.
        equal: The values that all ranks had.
        by_rank: What each rank had for itself.
    """

    specs: Specs
    equal: Values
    by_rank: Sequence[Values]

    def value(self, place: int, rank: int, size: int) -> np.ndarray:
        """Return a rank's value of a variable.

        Args:
            place: Which variable.
            rank: The rank.
            size: How many ranks there are; perhaps more or fewer than there were.
        """
        _, _, dtype, kind = self.specs[place]
        name = str(place)
        if kind == EQUAL:
            return of_type(self.equal[name], dtype)
        values = [of_type(values[name], dtype) for values in self.by_rank]
        if len(values) == size:
            return values[rank]
        if kind == AVERAGED:
            return np.mean(values, axis=0, dtype=np.float64).astype(values[0].dtype)
        # Only the sum over ranks counts: one of them gets it.
        share = np.sum(values, axis=0) if rank == 0 else np.zeros_like(values[0])
        return np.asarray(share, values[0].dtype)


class RunVariables:
    """The variables of a model and of its optimizers; all of them are built.

    Args:
        model: The model.
        with_metrics: Whether the metrics are among them: they count from one end of an
            epoch to the next.
    """

    def __init__(self, model: Any, *, with_metrics: bool) -> None:
        metrics = {id(variable): variable for variable in model.metrics_variables}
        variables = [
            *model.variables,
            *(v for optimizer in optimizers_of(model) for v in optimizer.variables),
        ]
        others = {id(v): v for v in variables if id(v) not in metrics}
        self._metrics = [*metrics.values()] if with_metrics else []
        self._others = [*others.values()]
        self._of_layers = {id(variable) for variable in state_of_layers(model)}

    def take(self, collective: Collective) -> tuple[Specs, Values, Values]:
        """Copy the values.

        Args:
            collective: The ranks, all of which have to ask.

        Returns:
            What variables they are, what all ranks have, and what this one has.
        """
        variables = [*self._others, *self._metrics]
        values = [tf.convert_to_tensor(variable).numpy() for variable in variables]
        kinds = self._kinds(values, collective)
        specs = [
            (*_spec_of(variable), kind)
            for variable, kind in zip(variables, kinds, strict=True)
        ]
        equal: Values = {}
        own: Values = {}
        for place, (value, kind) in enumerate(zip(values, kinds, strict=True)):
            (equal if kind == EQUAL else own)[str(place)] = of_numpy(value)
        return specs, equal, own

    def check(self, specs: Specs, where: str) -> None:
        """Refuse values that are another model's.

        Args:
            specs: What variables they were.
            where: What they were read from.

        Raises:
            ValueError: If these variables are others.
        """
        mine = [_spec_of(variable) for variable in [*self._others, *self._metrics]]
        length = max(len(mine), len(specs))
        for place in range(length):
            one = mine[place] if place < len(mine) else None
            other = specs[place] if place < len(specs) else None
            # Paths count the layers that were made so far, and may differ.
            if one is None or other is None or [*one[1:3]] != [*other[1:3]]:
                raise ValueError(
                    "backup_dir holds the state of another model or optimizer. "
                    f"Received: {where} with {_words(other)}, where this model has "
                    f"{_words(one)}. Make the model that was trained, or remove the "
                    "folder to train from the beginning."
                )

    def set_others(self, saved: Saved, rank: int, size: int) -> None:
        """Set all but the metrics.

        Args:
            saved: The values.
            rank: The number of this process.
            size: How many there are.
        """
        for place, variable in enumerate(self._others):
            variable.assign(saved.value(place, rank, size))

    def set_metrics(self, saved: Saved, rank: int, size: int) -> None:
        """Set the metrics; see `set_others`."""
        for place, variable in enumerate(self._metrics, len(self._others)):
            variable.assign(saved.value(place, rank, size))

    def _kinds(self, values: list[np.ndarray], collective: Collective) -> list[str]:
        """Say of each variable what it is to other ranks."""
        metrics = {id(variable) for variable in self._metrics}
        kinds = []
        checksums: dict[int, int] = {}
        variables = [*self._others, *self._metrics]
        for place, (variable, value) in enumerate(zip(variables, values, strict=True)):
            is_part = "gradient_accumulator" in variable.path
            kinds.append(SUMMED if is_part or id(variable) in metrics else EQUAL)
            if collective.size > 1 and id(variable) in self._of_layers:
                checksums[place] = zlib.crc32(np.ascontiguousarray(value).tobytes())
        if checksums:
            own = list(checksums.values())
            by_rank = collective.exchange("the state of layers", own)
            for place, of_ranks in zip(
                checksums, zip(*by_rank, strict=True), strict=True
            ):
                if len(set(of_ranks)) > 1:
                    kinds[place] = AVERAGED
        return kinds


def _spec_of(variable: Any) -> tuple[str, list[int], str]:
    """Describe a variable."""
    return (
        variable.path,
        [int(length) for length in variable.shape],
        tf.as_dtype(variable.dtype).name,
    )


def of_numpy(value: np.ndarray) -> np.ndarray:
    """Return the bits of a value as a type that NumPy has itself: bfloat16 is none.

    Args:
        value: Any array of numbers.
    """
    is_added = value.dtype.isbuiltin == 2
    return value.view(f"u{value.dtype.itemsize}") if is_added else value


def of_type(value: np.ndarray, dtype: str) -> np.ndarray:
    """Undo `of_numpy`.

    Args:
        value: As it was returned.
        dtype: The name of the type that there was.
    """
    is_own = value.dtype.name == dtype
    return value if is_own else value.view(tf.as_dtype(dtype).as_numpy_dtype)


def _words(spec: Sequence[Any] | None) -> str:
    """Name a variable in an error."""
    return "nothing" if spec is None else f"{spec[0]} {tuple(spec[1])} {spec[2]}"
