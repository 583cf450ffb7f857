"""Membership of a job: this process, its peers and their addresses."""

from tfdist.cluster.detect import detect
from tfdist.cluster.model import Cluster, Task

__all__ = ["Cluster", "Task", "detect"]
