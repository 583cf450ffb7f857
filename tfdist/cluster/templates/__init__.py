"""Files that start a whole job on a scheduler."""

from tfdist.cluster.templates.job_files import JOB_FILES, format_job_file
from tfdist.cluster.templates.program import Nodes, Program

__all__ = ["JOB_FILES", "Nodes", "Program", "format_job_file"]
