"""Real clusters of processes inside a test."""

from tfdist.testing.processes import (
    ClusterError,
    ClusterResult,
    RankError,
    cluster,
)

__all__ = ["ClusterError", "ClusterResult", "RankError", "cluster"]
