"""Starting the processes of a job, and leaving none behind."""

from tfdist.launch.attempts import run_job
from tfdist.launch.command import resolve_command
from tfdist.launch.hosts import Hosts
from tfdist.launch.job import Job
from tfdist.launch.limits import DEFAULT_RESTARTS, Limits
from tfdist.launch.local import plan_here, run, shell_lines
from tfdist.launch.output import Output
from tfdist.launch.placement import supposed
from tfdist.launch.pod import Pods, plan_in_pod
from tfdist.launch.restart_report import report
from tfdist.launch.restarts import Attempt, Restarts
from tfdist.launch.result import EXIT_CODE_OF_SIGNAL, Exit, RunResult
from tfdist.launch.spec import ProcessSpec
from tfdist.launch.tuning import TUNING_OPTIONS, tuning_variables

__all__ = [
    "Attempt",
    "DEFAULT_RESTARTS",
    "EXIT_CODE_OF_SIGNAL",
    "Exit",
    "Hosts",
    "Job",
    "Limits",
    "Output",
    "Pods",
    "ProcessSpec",
    "Restarts",
    "RunResult",
    "TUNING_OPTIONS",
    "plan_here",
    "plan_in_pod",
    "report",
    "resolve_command",
    "run",
    "run_job",
    "shell_lines",
    "supposed",
    "tuning_variables",
]
