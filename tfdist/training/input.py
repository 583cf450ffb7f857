"""What the ranks of a job are fed: the same batches, of which each takes its rows."""

import random
import zlib
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.compat.keras import data_adapters
from tfdist.compat.keras.positions import current_position
from tfdist.compat.tensorflow import global_seed
from tfdist.training.pipeline import own_part, shard_global, shard_own


class Feed:
    """Turns Keras's data adapters into datasets of `Shard`.

    Args:
        collective: How the ranks talk.
        devices: How many devices of each rank share its rows. Default 1.
    """

    def __init__(self, collective: Collective, devices: int = 1) -> None:
        self._collective = collective
        self._replicas = collective.size * devices
        # What went wrong in the thread that reads the data.
        self.error: Exception | None = None

    def distribute(self, adapter: Any) -> tf.data.Dataset:
        """Return this rank's `Shard`s of what a Keras data adapter holds."""
        self.error = None
        dataset = self._shuffled_alike(adapter)
        if data_adapters.holds_dataset(adapter):
            own = own_part(dataset, self._collective)
            if own is not None:
                return shard_own(own, self._collective)
        return shard_global(
            dataset,
            self._collective,
            self._check_fingerprint,
            may_be_empty=data_adapters.may_leave_ranks_empty(adapter, self._replicas),
        )

    def _shuffled_alike(self, adapter: Any) -> tf.data.Dataset:
        """Return an adapter's dataset, whose permutations all ranks share."""
        if data_adapters.shuffles_batches(adapter):
            # The user's own seed gives equal states, which are left alone.
            # Not hash(): that of None differs between processes.
            state = zlib.crc32(repr(random.getstate()).encode())
            states = self._collective.exchange("random states", state)
            if len(set(states)) > 1:
                data_adapters.agree_on_batches(states[0])
        if data_adapters.shuffles_arrays(adapter):
            position = current_position()
            drawn = random.SystemRandom().getrandbits(31)
            draw = drawn if position is None else position.seed
            seeds = self._collective.exchange("shuffle seeds", [global_seed(), draw])
            if len({seed for seed, _ in seeds}) > 1 or seeds[0][0] is None:
                with data_adapters.agreed_permutations(seeds[0][1]):
                    return adapter.get_tf_dataset()
        return adapter.get_tf_dataset()

    def _check_fingerprint(self, fingerprint: int) -> None:
        """Refuse datasets that are not the same on every rank."""
        fingerprints = self._collective.exchange(
            "first batches", fingerprint, joint=False
        )
        if len(set(fingerprints)) > 1:
            others = [r for r, f in enumerate(fingerprints) if f != fingerprints[0]]
            self.error = RuntimeError(
                "The ranks do not see the same data: the first batch of rank "
                f"{others[0]} is not that of rank 0. Received: a dataset that is "
                "shuffled, filtered or sharded in another way on each rank. Give "
                "every rank the whole dataset and every random operation of it a "
                "seed (dataset.shuffle(..., seed=1)), or shard it yourself and pass "
                "it through strategy.distribute_datasets_from_function."
            )
            raise self.error
