"""How to train: the strategies."""

from tfdist.strategies.allreduce import AllReduceStrategy
from tfdist.strategies.registry import create

__all__ = ["AllReduceStrategy", "create"]
