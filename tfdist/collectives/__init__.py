"""Collective communication between ranks."""

from tfdist.collectives.base import Collective, FusingCollective
from tfdist.collectives.single import SingleCollective
from tfdist.collectives.tensorflow import TensorFlowCollective

__all__ = [
    "Collective",
    "FusingCollective",
    "SingleCollective",
    "TensorFlowCollective",
]
