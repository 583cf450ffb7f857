"""Who is in the job: this process, the others, and where each of them is."""

from tfdist.cluster.detect import detect
from tfdist.cluster.model import Cluster, Task

__all__ = ["Cluster", "Task", "detect"]
