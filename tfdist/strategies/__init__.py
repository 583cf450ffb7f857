"""How to train: the strategies."""

from tfdist.strategies.allreduce import AllReduceStrategy
from tfdist.strategies.horovod import HorovodStrategy
from tfdist.strategies.parameter_server import ParameterServerStrategy
from tfdist.strategies.registry import create

__all__ = [
    "AllReduceStrategy",
    "HorovodStrategy",
    "ParameterServerStrategy",
    "create",
]
