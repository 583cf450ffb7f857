"""Real clusters of processes inside a test."""

from tfdist.testing.processes import cluster
from tfdist.testing.result import ClusterError, ClusterResult, RankError

__all__ = ["ClusterError", "ClusterResult", "RankError", "cluster"]
