"""Starting the processes of a job, supervising them, and cleaning up after them."""

from tfdist.launch.console import has_terminal, print_line
from tfdist.launch.horovod import TUNING_OPTIONS, tuning_variables
from tfdist.launch.hosts import Hosts, Pods, plan_in_pod, plan_unconnected
from tfdist.launch.isolation import isolate_network
from tfdist.launch.job import (
    DEFAULT_RESTARTS,
    LEVEL_VARIABLE,
    Job,
    Limits,
    ProcessSpec,
    resolve_command,
)
from tfdist.launch.mpi import with_engine
from tfdist.launch.output import Output
from tfdist.launch.plan import plan_here
from tfdist.launch.restarts import Attempt, Restarts
from tfdist.launch.result import Exit, RunResult
from tfdist.launch.runner import check_job, run, run_job, shell_lines

__all__ = [
    "Attempt",
    "DEFAULT_RESTARTS",
    "Exit",
    "Hosts",
    "Job",
    "LEVEL_VARIABLE",
    "Limits",
    "Output",
    "Pods",
    "ProcessSpec",
    "Restarts",
    "RunResult",
    "TUNING_OPTIONS",
    "check_job",
    "has_terminal",
    "isolate_network",
    "plan_here",
    "plan_in_pod",
    "plan_unconnected",
    "print_line",
    "resolve_command",
    "run",
    "run_job",
    "shell_lines",
    "tuning_variables",
    "with_engine",
]
