"""Several devices in each process, with a copy of every variable on each."""

from tfdist.strategies.mirrored.extended import (
    CentralStorageExtended,
    MirroredReplicasExtended,
)

__all__ = ["CentralStorageExtended", "MirroredReplicasExtended"]
