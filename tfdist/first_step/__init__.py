"""The check that the first step of a `fit` is that of one process."""

from tfdist.first_step.check import FirstStepCheck, check_choice
from tfdist.first_step.comparison import Cause

__all__ = ["Cause", "FirstStepCheck", "check_choice"]
