"""The benchmarks behind `tfdist bench`; importing them loads no TensorFlow."""

from tfdist.benchmarks.allreduce import format_size, parse_size, run_allreduce
from tfdist.benchmarks.parameter_server import JobSetup, run_parameter_server
from tfdist.benchmarks.processes import BenchmarkError
from tfdist.benchmarks.training import run_training

__all__ = [
    "BenchmarkError",
    "JobSetup",
    "format_size",
    "parse_size",
    "run_allreduce",
    "run_parameter_server",
    "run_training",
]
