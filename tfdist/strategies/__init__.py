"""The training strategies."""

from tfdist.compat.tensorflow import cluster_resolver
from tfdist.strategies.allreduce import AllReduceStrategy
from tfdist.strategies.builtin import (
    CentralStorageStrategy,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    TPUStrategy,
)
from tfdist.strategies.horovod import HorovodStrategy
from tfdist.strategies.parameter_server.strategy import ParameterServerStrategy
from tfdist.strategies.registry import create

__all__ = [
    "AllReduceStrategy",
    "CentralStorageStrategy",
    "HorovodStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "TPUStrategy",
    "cluster_resolver",
    "create",
]
