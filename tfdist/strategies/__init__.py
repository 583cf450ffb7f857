"""How to train: the strategies."""

from tfdist.compat.cluster_resolver import cluster_resolver
from tfdist.strategies.allreduce import AllReduceStrategy
from tfdist.strategies.horovod import HorovodStrategy
from tfdist.strategies.parameter_server import ParameterServerStrategy
from tfdist.strategies.registry import create

__all__ = [
    "AllReduceStrategy",
    "HorovodStrategy",
    "ParameterServerStrategy",
    "cluster_resolver",
    "create",
]
