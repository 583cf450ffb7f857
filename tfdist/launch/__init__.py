"""Starting the processes of a job, supervising them, and cleaning up after them."""

from tfdist.launch.command import resolve_command
from tfdist.launch.console import print_line
from tfdist.launch.horovod import TUNING_OPTIONS, tuning_variables
from tfdist.launch.hosts import Hosts, Pods, plan_in_pod, plan_unconnected
from tfdist.launch.isolation import isolate_network
from tfdist.launch.job import DEFAULT_RESTARTS, LEVEL_VARIABLE, Job, Limits, ProcessSpec
from tfdist.launch.live_line import has_terminal
from tfdist.launch.mpi import with_engine
from tfdist.launch.output import Output
from tfdist.launch.plan import plan_here
from tfdist.launch.restarts import Attempt, Restarts
from tfdist.launch.result import EXIT_CODE_OF_SIGNAL, Exit, RunResult
from tfdist.launch.runner import run, run_job, shell_lines

__all__ = [
    "Attempt",
    "DEFAULT_RESTARTS",
    "EXIT_CODE_OF_SIGNAL",
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
