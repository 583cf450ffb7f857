"""Clusters in CLUSTER_SPEC, of Vertex AI and of TonY."""

import json
from collections.abc import Mapping
from dataclasses import replace

from tfdist.cluster import tf_config
from tfdist.cluster.model import Cluster
from tfdist.cluster.resolvers.base import number
from tfdist.cluster.resolvers.launchers import has_process_launcher

# https://docs.cloud.google.com/vertex-ai/docs/training/distributed-training
_JOBS = {
    "workerpool0": "chief",
    "workerpool1": "worker",
    "workerpool2": "ps",
    "workerpool3": "evaluator",
}
# Part of the image's name, which CLUSTER_SPEC contains.
_REDUCTION_SERVER = "reductionserver"


class VertexResolver:
    """Reader of CLUSTER_SPEC, for programs without Vertex AI's TF_CONFIG."""

    # Vertex AI sets both for several replicas, but only CLUSTER_SPEC for one. Reduction
    # Server takes the worker pool of parameter servers, but is not part of the cluster.
    name = "vertex"
    launcher = "Vertex AI"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether CLUSTER_SPEC names worker pools."""
        has_pools = "workerpool" in env.get("CLUSTER_SPEC", "")
        return has_pools and not has_process_launcher(env)

    def resolve(self, env: Mapping[str, str]) -> Cluster:
        """Read the cluster from CLUSTER_SPEC, a TF_CONFIG with other job names."""
        text = env["CLUSTER_SPEC"]
        cluster = tf_config.loads(text, name="CLUSTER_SPEC", job_names=_JOBS)
        if _REDUCTION_SERVER not in text:
            return cluster
        if cluster.task.type == "ps":
            raise ValueError(
                "This replica is a reducer of Reduction Server, which does not train. "
                f"Received: workerpool2, index {cluster.task.index}. Give the third "
                "worker pool the image of Reduction Server, and not that of the "
                "program."
            )
        return replace(cluster, ps=())


class TonyResolver:
    """Reader of the CLUSTER_SPEC that TonY sets on YARN."""

    # https://github.com/tony-framework/TonY
    name = "tony"
    launcher = "TonY"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether TonY has set the cluster and the job type."""
        is_set = bool(env.get("CLUSTER_SPEC") and env.get("JOB_NAME"))
        return is_set and not has_process_launcher(env)

    def resolve(self, env: Mapping[str, str]) -> Cluster:
        """Read the cluster from CLUSTER_SPEC, and the task from two more variables."""
        index = number(env, "TASK_INDEX", self.launcher)
        task = json.dumps({"type": env["JOB_NAME"], "index": index})
        text = f'{{"cluster": {env["CLUSTER_SPEC"]}, "task": {task}}}'
        return tf_config.loads(text, name="CLUSTER_SPEC")
