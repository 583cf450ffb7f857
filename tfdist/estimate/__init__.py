"""Prediction of time and memory of training on more ranks than this machine has."""

from tfdist.estimate.costs import Link
from tfdist.estimate.prediction import Measured, Variant, predict
from tfdist.estimate.start import Orders, measure

__all__ = [
    "Link",
    "Measured",
    "Orders",
    "Variant",
    "measure",
    "predict",
]
