"""Mixed precision: policies, and loss scaling on which all ranks agree."""

from tfdist.mixed_precision.loss_scale_optimizer import LossScaleOptimizer
from tfdist.mixed_precision.policy import loss_scale, set_policy

__all__ = ["LossScaleOptimizer", "loss_scale", "set_policy"]
