"""Several devices in each process, with a copy of every variable on each."""

from tfdist.strategies.mirrored.central import CentralStorageExtended
from tfdist.strategies.mirrored.extended import MirroredReplicasExtended

__all__ = ["CentralStorageExtended", "MirroredReplicasExtended"]
