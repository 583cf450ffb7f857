"""Rates, efficiencies and scaling laws: arithmetic without TensorFlow."""

from tfdist.scaling.laws import (
    amdahl_speedup,
    bus_bandwidth,
    efficiency,
    fit_amdahl,
    fit_gustafson,
    gustafson_speedup,
    strong_scaling_efficiency,
    waiting_share,
    weak_scaling_efficiency,
)
from tfdist.scaling.measure import Rate, RateMeter, over_ranks
from tfdist.scaling.report import Law, ScalingReport, ScalingRow, scaling_report
from tfdist.scaling.throughput_file import EpochRate, Run, read_run, text_of_run

__all__ = [
    "EpochRate",
    "Law",
    "Rate",
    "RateMeter",
    "Run",
    "ScalingReport",
    "ScalingRow",
    "amdahl_speedup",
    "bus_bandwidth",
    "efficiency",
    "fit_amdahl",
    "fit_gustafson",
    "gustafson_speedup",
    "over_ranks",
    "read_run",
    "scaling_report",
    "strong_scaling_efficiency",
    "text_of_run",
    "waiting_share",
    "weak_scaling_efficiency",
]
