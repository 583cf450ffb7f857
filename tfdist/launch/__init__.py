"""Starting the processes of a job, and leaving none behind."""

from tfdist.launch.command import resolve_command
from tfdist.launch.job import Job
from tfdist.launch.local import DEFAULT_RESTARTS, plan_here, run, shell_lines
from tfdist.launch.output import Output
from tfdist.launch.plan import ProcessSpec
from tfdist.launch.result import Exit, RunResult
from tfdist.launch.tuning import TUNING_OPTIONS, tuning_variables

__all__ = [
    "DEFAULT_RESTARTS",
    "Exit",
    "Job",
    "Output",
    "ProcessSpec",
    "RunResult",
    "TUNING_OPTIONS",
    "plan_here",
    "resolve_command",
    "run",
    "shell_lines",
    "tuning_variables",
]
