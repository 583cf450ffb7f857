"""Ranks talking to each other."""

from tfdist.collectives.base import Collective
from tfdist.collectives.single import SingleCollective
from tfdist.collectives.tensorflow import TensorFlowCollective

__all__ = ["Collective", "SingleCollective", "TensorFlowCollective"]
