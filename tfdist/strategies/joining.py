"""The mechanism for some devices in each of some processes."""

from collections.abc import Sequence
from typing import Any

from tfdist.collectives import Collective
from tfdist.gradients import BUCKET_BYTES, GradientReducer
from tfdist.strategies.mirrored import MirroredReplicasExtended
from tfdist.strategies.process_replica import ProcessReplicaExtended


def of_devices(
    strategy: Any,
    collective: Collective,
    devices: Sequence[str],
    cross_device_ops: Any = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> Any:
    """Return the extended part of a strategy; for one device, that which costs nothing.

    Args:
        strategy: The public strategy.
        collective: How the processes talk.
        devices: The full names of the devices of this process.
        cross_device_ops: See `MirroredReplicasExtended`. Default None.
        bucket_bytes: How many bytes of gradients travel together. Default 25 MiB.
    """

    def reducer(collective: Collective) -> GradientReducer:
        return GradientReducer(collective, bucket_bytes=bucket_bytes)

    if len(devices) == 1:
        (device,) = devices
        return ProcessReplicaExtended(strategy, collective, reducer(collective), device)
    return MirroredReplicasExtended(
        strategy, collective, reducer, devices, cross_device_ops
    )
