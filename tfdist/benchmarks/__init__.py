"""Measuring speed and memory: what `tfdist bench` runs; TensorFlow is not loaded."""

from tfdist.benchmarks.run import (
    run_allreduce,
    run_backup,
    run_memory,
    run_training,
)
from tfdist.benchmarks.run_horovod import run_horovod_allreduce, run_horovod_training
from tfdist.benchmarks.run_pipelines import run_input
from tfdist.benchmarks.run_servers import (
    JobSetup,
    run_embedding,
    run_parameter_server,
    run_slow_worker,
)
from tfdist.benchmarks.sizes import format_size, parse_size
from tfdist.benchmarks.start import BenchmarkError

__all__ = [
    "BenchmarkError",
    "JobSetup",
    "format_size",
    "parse_size",
    "run_allreduce",
    "run_backup",
    "run_embedding",
    "run_horovod_allreduce",
    "run_horovod_training",
    "run_input",
    "run_memory",
    "run_parameter_server",
    "run_slow_worker",
    "run_training",
]
