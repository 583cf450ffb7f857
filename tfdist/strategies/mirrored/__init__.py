"""Strategies with several devices per process."""

from tfdist.strategies.mirrored.extended import (
    CentralStorageExtended,
    MirroredReplicasExtended,
)

__all__ = ["CentralStorageExtended", "MirroredReplicasExtended"]
