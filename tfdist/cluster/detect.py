"""Which cluster this process is in."""

import os
from collections.abc import Mapping

from tfdist.cluster.model import Cluster
from tfdist.cluster.resolvers import Resolver, TFConfigResolver, TfdistResolver

# The first that recognises the environment is asked, and no other. Our own launcher
# comes before TF_CONFIG, which it sets as well.
RESOLVERS: tuple[Resolver, ...] = (
    TfdistResolver(),
    TFConfigResolver(),
)


def detect(env: Mapping[str, str] | None = None) -> Cluster:
    """Return the cluster that the environment describes.

    An environment that describes one wrongly is an error, never a reason to ask the
    next resolver or to train alone.

    Args:
        env: The environment, by variable. Default None: that of this process.

    Returns:
        The cluster; `Cluster()`, which is this process alone, if nothing describes one.

    Raises:
        ValueError: If the variables of a launcher are there but describe no possible
            cluster.

    Example:
        >>> detect({}).size
        1
        >>> tf_config = (
        ...     '{"cluster": {"worker": ["a:2222", "b:2222"]},'
        ...     ' "task": {"type": "worker", "index": 1}}'
        ... )
        >>> detect({"TF_CONFIG": tf_config}).rank
        1
    """
    environment = os.environ if env is None else env
    for resolver in RESOLVERS:
        if resolver.recognises(environment):
            return resolver.resolve(environment)
    return Cluster()
