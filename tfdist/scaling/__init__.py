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
from tfdist.scaling.step_times import (
    Cause,
    Shares,
    Slow,
    StepTimes,
    advice_on,
    mean_times,
    mean_waiting,
    median_times,
    shares_of,
    slow_rank,
    times_of_steps,
)
from tfdist.scaling.throughput_file import EpochRate, Run, read_run, text_of_run
from tfdist.scaling.verdict import Verdict, verdict

__all__ = [
    "Cause",
    "EpochRate",
    "Law",
    "Rate",
    "RateMeter",
    "Run",
    "ScalingReport",
    "ScalingRow",
    "Shares",
    "Slow",
    "StepTimes",
    "Verdict",
    "advice_on",
    "amdahl_speedup",
    "bus_bandwidth",
    "efficiency",
    "fit_amdahl",
    "fit_gustafson",
    "gustafson_speedup",
    "mean_times",
    "mean_waiting",
    "median_times",
    "over_ranks",
    "read_run",
    "scaling_report",
    "shares_of",
    "slow_rank",
    "strong_scaling_efficiency",
    "text_of_run",
    "times_of_steps",
    "verdict",
    "waiting_share",
    "weak_scaling_efficiency",
]
