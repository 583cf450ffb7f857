"""Weights divided among ranks; each rank updates its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import Collective, name_in_graph
from tfdist.compat.owned_variables import owner_of
from tfdist.gradients.buckets import BUCKET_BYTES, plan_buckets

# The name tells a rank that waits alone what the others must do.
_SAVE = "a save by every rank, which shard_optimizer=True needs"


def assign_owners(sizes_bytes: Sequence[int], ranks: int) -> list[int]:
    """Assign weights to ranks, so that each rank owns about as many bytes."""
    # Largest first, to the rank with the fewest bytes (Graham 1969).
    owned = [0] * ranks
    owners = [0] * len(sizes_bytes)
    for i in sorted(range(len(sizes_bytes)), key=lambda i: (-sizes_bytes[i], i)):
        owners[i] = owned.index(min(owned))
        owned[owners[i]] += sizes_bytes[i]
    return owners


class WeightOwners:
    """Ranks that own weights, and what they send to each other."""

    def __init__(self, collective: Collective) -> None:
        self.rank = collective.rank
        self._collective = collective
        # The places of the variables that other ranks now send when asked, by id.
        self._places: dict[int, int] | None = None

    def assign(self, sizes_bytes: Sequence[int]) -> list[int]:
        """Return the owner of each weight, given their sizes."""
        return assign_owners(sizes_bytes, self._collective.size)

    def share(self, weights: Sequence[Any], owners: Sequence[int]) -> None:
        """Assign the owners' values of weights on all other ranks."""
        if tf.executing_eagerly():
            self._share(weights, owners)
            return
        # XLA would join what waits for one owner to what another owner waits for.
        with tf.xla.experimental.jit_scope(compile_ops=False):
            self._share(weights, owners)

    def _share(self, weights: Sequence[Any], owners: Sequence[int]) -> None:
        """Assign the owners' values of weights, without XLA."""
        for bucket in self._plan(weights, owners):
            group = [weights[i] for i in bucket]
            ranks = [owners[i] for i in bucket]
            values = self._collective.share(
                group, ranks, name=name_in_graph("weights of their owners")
            )
            for weight, value, rank in zip(group, values, ranks, strict=True):
                if rank != self.rank:
                    weight.assign(value)

    def _plan(self, weights: Sequence[Any], owners: Sequence[int]) -> list[list[int]]:
        """Return the positions of the weights that go together."""
        sizes = [w.shape.num_elements() * w.dtype.size for w in weights]
        if not self._collective.sends_at_once:
            kinds = [(o, w.dtype) for o, w in zip(owners, weights, strict=True)]
            return plan_buckets(sizes, kinds, BUCKET_BYTES, BUCKET_BYTES)
        # Ranks send at the same time, so that a bucket has weights of several owners.
        buckets: list[list[int]] = []
        filled = BUCKET_BYTES
        for i, size in enumerate(sizes):
            is_other = bool(i) and weights[i].dtype != weights[i - 1].dtype
            if filled >= BUCKET_BYTES or is_other:
                buckets.append([])
                filled = 0
            buckets[-1].append(i)
            filled += size
        return buckets

    @contextmanager
    def reading(self, variables: Sequence[Any]) -> Iterator[None]:
        """Let the chief read other ranks' variables in a block, while they `lend`."""
        if self._places is not None:
            yield
            return
        # Ranks that are elsewhere are named before anything is written.
        self._collective.exchange(_SAVE, len(variables))
        self._places = {id(variable): i for i, variable in enumerate(variables)}
        try:
            yield
        finally:
            self._places = None
            self._collective.exchange(_SAVE, None)

    def lend(self, variables: Sequence[Any]) -> None:
        """Send the chief what it asks for, until it has read all."""
        self._collective.exchange(_SAVE, len(variables))
        while (place := self._collective.exchange(_SAVE, None)[0]) is not None:
            self.move(variables[place])

    def read(self, variable: Any) -> tf.Tensor:
        """Return the value of another rank's variable, which that rank lends."""
        place = None if self._places is None else self._places.get(id(variable))
        if place is None:
            raise RuntimeError(
                "With shard_optimizer=True, only the owner of a weight has the "
                f"optimizer's variables of it. Received: {variable.path}, read on rank "
                f"{self.rank} and kept on rank {owner_of(variable)}. Save the model on "
                "every rank, and read the file."
            )
        self._collective.exchange(_SAVE, place)
        return self.move(variable)

    def move(self, variable: Any) -> tf.Tensor:
        """Return the owner's value of a variable; all ranks must call it."""
        owner = owner_of(variable)
        assert owner is not None, "every rank has its own value"
        if owner == self.rank:
            value = tf.convert_to_tensor(variable._value)
        else:
            value = tf.zeros(variable.shape, variable.dtype)
        return self._collective.broadcast([value], owner, name="an owned variable")[0]
