"""Clusters of the containers of one Amazon SageMaker training job."""

from collections.abc import Mapping

from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers.base import received
from tfdist.cluster.resolvers.launchers import has_process_launcher
from tfdist.cluster.validation import parse_json

# As in the TF_CONFIG that SageMaker writes for its own launcher.
_PORT = 2222


class SageMakerResolver:
    """Reader of SM_HOSTS, whose hosts are the workers, and SM_CURRENT_HOST."""

    # SageMaker sets both in every job, but TF_CONFIG for some launchers only; see
    # ENVIRONMENT_VARIABLES.md in https://github.com/aws/sagemaker-training-toolkit.
    name = "sagemaker"
    launcher = "SageMaker"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether the job has more than one host."""
        if not env.get("SM_HOSTS", "").strip() or has_process_launcher(env):
            return False
        hosts = _hosts(env)
        return hosts is None or len(hosts) > 1

    def resolve(self, env: Mapping[str, str]) -> Cluster:
        """Read the cluster from the list of hosts."""
        hosts = _hosts(env)
        if not hosts:
            raise ValueError(
                "SM_HOSTS must be a JSON list of host names. "
                f"Received: {received(env, 'SM_HOSTS')}. Leave it as SageMaker sets "
                """it, for example SM_HOSTS='["algo-1", "algo-2"]'."""
            )
        # Hosts of some groups may only prepare data.
        if env.get("SM_IS_HETERO", "").lower() == "true":
            raise ValueError(
                "SM_HOSTS lists hosts of several instance groups, and no variable says "
                "which of them train. Received: SM_IS_HETERO=true, "
                f"{received(env, 'SM_INSTANCE_GROUPS')}. Set TF_CONFIG to the hosts "
                "that train, or to {} on one that trains alone."
            )
        here = env.get("SM_CURRENT_HOST", "")
        if here not in hosts:
            raise ValueError(
                "SM_CURRENT_HOST must be one of SM_HOSTS. "
                f"Received: {received(env, 'SM_CURRENT_HOST')}, and {len(hosts)} hosts "
                f"from {hosts[0]!r} on. Leave both as SageMaker sets them."
            )
        try:
            return Cluster(
                workers=tuple(f"{host}:{_PORT}" for host in hosts),
                task=Task("worker", hosts.index(here)),
            )
        except ValueError as error:
            raise ValueError(f"SM_HOSTS {error}") from None


def _hosts(env: Mapping[str, str]) -> list[str] | None:
    """Return the hosts of the job, or None if they are malformed."""
    try:
        hosts = parse_json(env["SM_HOSTS"])
    except ValueError:
        return None
    is_list = isinstance(hosts, list) and all(isinstance(host, str) for host in hosts)
    return hosts if is_list else None
