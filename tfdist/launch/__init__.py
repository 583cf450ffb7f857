"""Starting the processes of a job, and leaving none behind."""

from tfdist.launch.attempts import Limits, run_job
from tfdist.launch.command import resolve_command
from tfdist.launch.job import Job
from tfdist.launch.local import DEFAULT_RESTARTS, plan_here, run, shell_lines
from tfdist.launch.output import Output
from tfdist.launch.plan import ProcessSpec
from tfdist.launch.restart_report import report
from tfdist.launch.restarts import Attempt, Restarts
from tfdist.launch.result import Exit, RunResult
from tfdist.launch.tuning import TUNING_OPTIONS, tuning_variables

__all__ = [
    "Attempt",
    "DEFAULT_RESTARTS",
    "Exit",
    "Job",
    "Limits",
    "Output",
    "ProcessSpec",
    "Restarts",
    "RunResult",
    "TUNING_OPTIONS",
    "plan_here",
    "report",
    "resolve_command",
    "run",
    "run_job",
    "shell_lines",
    "tuning_variables",
]
