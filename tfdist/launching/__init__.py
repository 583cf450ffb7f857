"""Starting the processes of a job, supervising them, and cleaning up after them."""

from tfdist.launching.console import has_terminal, print_line
from tfdist.launching.horovod import TUNING_OPTIONS, tuning_variables
from tfdist.launching.hosts import Hosts, Pods, plan_in_pod, plan_unconnected
from tfdist.launching.isolation import isolate_network
from tfdist.launching.job import (
    DEFAULT_RESTARTS,
    LEVEL_VARIABLE,
    STRATEGIES,
    Job,
    Limits,
    ProcessSpec,
    resolve_command,
    with_strategy,
)
from tfdist.launching.mpi import with_engine
from tfdist.launching.output import Output
from tfdist.launching.plan import plan_here
from tfdist.launching.restarts import Attempt, Restarts
from tfdist.launching.result import Exit, RunResult
from tfdist.launching.runner import check_job, run, run_job, shell_lines

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
    "STRATEGIES",
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
    "with_strategy",
]
