"""Files that start a whole job on a scheduler."""

from tfdist.cluster.templates.job_files import (
    JOB_FILES,
    Nodes,
    Program,
    format_job_file,
)

__all__ = ["JOB_FILES", "Nodes", "Program", "format_job_file"]
