"""A cluster described by TF_CONFIG, whoever has set it."""

from collections.abc import Mapping

from tfdist.cluster import tf_config
from tfdist.cluster.model import Cluster


class TFConfigResolver:
    """Reads TF_CONFIG, which Kubeflow, Vertex AI, Ray and many scripts set.

    A variable that is empty counts as one that is not set: it is what shells and
    container files leave behind when they mean to unset one.

    Example:
        >>> TFConfigResolver().resolve({"TF_CONFIG": "{}"}).size
        1
    """

    name = "tf_config"
    launcher = "TF_CONFIG"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Say whether TF_CONFIG has a value."""
        return bool(env.get("TF_CONFIG", "").strip())

    def resolve(self, env: Mapping[str, str]) -> Cluster:
        """Read the cluster from TF_CONFIG."""
        return tf_config.loads(env["TF_CONFIG"])
