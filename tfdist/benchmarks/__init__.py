"""The benchmark behind `tfdist bench`; importing it loads no TensorFlow."""

from tfdist.benchmarks.allreduce import format_size, parse_size, run_allreduce
from tfdist.benchmarks.processes import BenchmarkError

__all__ = ["BenchmarkError", "format_size", "parse_size", "run_allreduce"]
