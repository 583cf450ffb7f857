"""Clusters in TF_CONFIG, from `tfdist run` or any other program."""

from collections.abc import Mapping
from dataclasses import replace

from tfdist.cluster import tf_config
from tfdist.cluster.model import Cluster
from tfdist.cluster.resolvers.base import number


class TFConfigResolver:
    """Reader of TF_CONFIG, which Kubeflow, Vertex AI, Ray and many scripts set."""

    name = "tf_config"
    launcher = "TF_CONFIG"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether TF_CONFIG has a value; shells may leave it empty."""
        return bool(env.get("TF_CONFIG", "").strip())

    def resolve(self, env: Mapping[str, str]) -> Cluster:
        """Read the cluster from TF_CONFIG."""
        return tf_config.loads(env["TF_CONFIG"])


class TfdistResolver:
    """Reader of the TF_CONFIG of `tfdist run`; it detects a replaced one."""

    name = "tfdist"
    launcher = "tfdist run"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether `tfdist run` has started this process."""
        return bool(env.get("TFDIST_RUN_ID"))

    def resolve(self, env: Mapping[str, str]) -> Cluster:
        """Read TF_CONFIG and compare it with the launcher's numbers."""
        if not env.get("TF_CONFIG", "").strip():
            raise ValueError(
                "TF_CONFIG is not set any more, though `tfdist run` gave one to this "
                "process. Received: TFDIST_RUN_ID without TF_CONFIG. "
                "Leave TF_CONFIG as it is, or unset TFDIST_RUN_ID too to train alone."
            )
        # Parameter servers have no rank, so their jobs set TFDIST_TASK instead.
        task = env.get("TFDIST_TASK")
        rank = None if task else number(env, "TFDIST_RANK", self.launcher)
        size = number(env, "TFDIST_SIZE", self.launcher)
        cluster = tf_config.loads(env["TF_CONFIG"])
        by_rank = not task and cluster.task.trains
        found = f"rank {cluster.rank}" if by_rank else str(cluster.task)
        if (found, cluster.size) != (task or f"rank {rank}", size):
            given = f"TFDIST_TASK={task}" if task else f"TFDIST_RANK={rank}"
            raise ValueError(
                "TF_CONFIG is not the one that `tfdist run` gave to this process. "
                f"Received: {given} and TFDIST_SIZE={size}, but TF_CONFIG "
                f"says {found}, with {cluster.size} training. "
                "Remove what sets TF_CONFIG from the script: the launcher does it."
            )
        return replace(cluster, run_id=env["TFDIST_RUN_ID"])
