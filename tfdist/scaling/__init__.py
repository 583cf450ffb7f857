"""How fast, and how well did it scale: arithmetic without TensorFlow."""

from tfdist.scaling.laws import (
    bus_bandwidth,
    efficiency,
    strong_scaling_efficiency,
    waiting_share,
    weak_scaling_efficiency,
)
from tfdist.scaling.measure import Rate, RateMeter, over_ranks

__all__ = [
    "Rate",
    "RateMeter",
    "bus_bandwidth",
    "efficiency",
    "over_ranks",
    "strong_scaling_efficiency",
    "waiting_share",
    "weak_scaling_efficiency",
]
