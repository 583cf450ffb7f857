"""Observation of a training, and the seam for a simulated rank."""

from tfdist.observing.observer import Observer, current_observer, observed_by
from tfdist.observing.script import (
    StopTraining,
    leave_if_threads_would_stay,
    run_observed,
    run_script,
)

__all__ = [
    "Observer",
    "StopTraining",
    "current_observer",
    "leave_if_threads_would_stay",
    "observed_by",
    "run_observed",
    "run_script",
]
