"""Training in 16 bits: policies, and loss scaling on which all ranks agree."""

from tfdist.mixed_precision.current_scale import loss_scale
from tfdist.mixed_precision.loss_scale_optimizer import LossScaleOptimizer
from tfdist.mixed_precision.policy import set_policy

__all__ = ["LossScaleOptimizer", "loss_scale", "set_policy"]
