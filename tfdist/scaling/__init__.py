"""How fast, how well did it scale, by how much: arithmetic without TensorFlow."""

from tfdist.scaling.laws import (
    bus_bandwidth,
    efficiency,
    strong_scaling_efficiency,
    waiting_share,
    weak_scaling_efficiency,
)
from tfdist.scaling.learning_rates import exponential_multiplier, warmup_multiplier
from tfdist.scaling.measure import Rate, RateMeter, over_ranks

__all__ = [
    "Rate",
    "RateMeter",
    "bus_bandwidth",
    "efficiency",
    "exponential_multiplier",
    "over_ranks",
    "strong_scaling_efficiency",
    "waiting_share",
    "warmup_multiplier",
    "weak_scaling_efficiency",
]
