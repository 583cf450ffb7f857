"""Starting the processes of a job, and leaving none behind."""

from tfdist.launch.command import resolve_command
from tfdist.launch.job import Job
from tfdist.launch.local import plan_here, run
from tfdist.launch.output import Output
from tfdist.launch.plan import ProcessSpec
from tfdist.launch.result import Exit, RunResult

__all__ = [
    "Exit",
    "Job",
    "Output",
    "ProcessSpec",
    "RunResult",
    "plan_here",
    "resolve_command",
    "run",
]
