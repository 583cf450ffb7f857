"""Prediction of the speed of training on more ranks than this machine has."""

from tfdist.estimate.costs import Link
from tfdist.estimate.measurement import Scenario, measure
from tfdist.estimate.prediction import Measured, predict

__all__ = ["Link", "Measured", "Scenario", "measure", "predict"]
