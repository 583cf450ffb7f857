"""Keras's own API for distribution, under a strategy that is made for the program."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster.detect import detect_membership


def check_initialized(
    job_addresses: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """Raise unless a program asks for the processes of the job."""
    member = detect_membership()
    addresses = None if job_addresses is None else job_addresses.split(",")
    # The first alone is a coordinator's.
    agrees = (
        num_processes in (None, member.size)
        and process_id in (None, member.rank)
        and (addresses is None or len(addresses) in (1, member.size))
    )
    if not agrees:
        raise ValueError(
            "keras.distribution.initialize must agree with the job: rank "
            f"{member.rank} of {member.size}. Received: job_addresses="
            f"{job_addresses!r}, num_processes={num_processes}, process_id="
            f"{process_id}. Leave its arguments out; the launcher knows them."
        )


def set_if_parallel(original: Callable[[Any], None], value: Any) -> None:
    """Set a distribution that means what the strategy does."""
    if value is not None:
        _check_distribution(value)
    original(value)


def _check_distribution(value: Any) -> None:
    """Raise unless a distribution is data parallel on all devices of the strategy."""
    kind = type(value).__name__
    if not isinstance(value, keras.distribution.DataParallel):
        raise ValueError(
            "With --strategy each process holds the whole model. Received: keras."
            f"distribution.{kind}, which divides it, and which Keras ignores on "
            "TensorFlow. Use DataParallel(), or Keras on JAX without tfdist."
        )
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    devices = [*map(str, value.device_mesh.devices.flatten())]
    if len(devices) != replicas and devices != keras.distribution.list_devices():
        raise ValueError(
            "DataParallel must be on all devices of the strategy. Received: "
            f"{devices}, and {replicas} replicas. Leave out its devices."
        )
    if not getattr(value, "auto_shard_dataset", True):
        raise ValueError(
            "With --strategy each process gets its rows of one dataset. Received: "
            "DataParallel(auto_shard_dataset=False). Leave it out, and give every "
            "process the whole dataset."
        )
