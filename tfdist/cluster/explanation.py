"""Which variables say that a process is in its cluster."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tfdist.cluster.detect import PLACE_RESOLVERS, RESOLVERS, detect, detect_place
from tfdist.cluster.model import Cluster
from tfdist.cluster.place import Place
from tfdist.cluster.resolvers.base import PlaceResolver, Resolver


@dataclass(frozen=True)
class Explanation:
    """A cluster, and where it was read.

    Args:
        cluster: What `detect` returns for the same environment.
        resolver: The name of the resolver that has read it; "" if none did.
        launcher: What has set the variables; "" if nothing that is known.
        variables: The variables that were read, in order.
        others: The names of the resolvers that would have read another cluster, but
            come later.
        place: What `detect_place` returns where no addresses are known.
    """

    cluster: Cluster
    resolver: str = ""
    launcher: str = ""
    variables: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    place: Place = Place()


def explain(env: Mapping[str, str] | None = None) -> Explanation:
    """Return the cluster that the environment describes, and what says so.

    Args:
        env: The environment, by variable. Default None: that of this process.

    Returns:
        The cluster with its source.

    Raises:
        ValueError: If the variables of a launcher are there but describe no possible
            cluster.

    Example:
        >>> explain({"TF_CONFIG": "{}"}).variables
        ('TF_CONFIG',)
    """
    environment = os.environ if env is None else env
    cluster = detect(environment)
    resolvers = [each for each in RESOLVERS if each.recognises(environment)]
    if not resolvers:
        place = detect_place(environment)
        read = _read_by_place_resolver(environment) if place.launcher else ()
        return Explanation(cluster, "", place.launcher, read, place=place)
    first, *others = resolvers
    return Explanation(
        cluster,
        first.name,
        first.launcher,
        _read_by(first, environment),
        tuple(each.name for each in others),
    )


def _read_by_place_resolver(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that tell a place, where none tells addresses."""
    first = next(each for each in PLACE_RESOLVERS if each.recognises(env))
    return _read_by(first, env)


def _read_by(
    resolver: Resolver | PlaceResolver, env: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the variables that a resolver reads, in its order."""
    recorder = _Recorder(env)
    resolver.recognises(recorder)
    resolver.resolve(recorder)
    return tuple(recorder.read)


def tf_config_here(env: Mapping[str, str] | None = None) -> str | None:
    """Return TF_CONFIG as it stands in the environment, right or wrong.

    Args:
        env: The environment, by variable. Default None: that of this process.

    Returns:
        Its text; None if it is not set.

    Example:
        >>> tf_config_here({"TF_CONFIG": "{"})
        '{'
    """
    environment = os.environ if env is None else env
    return environment.get("TF_CONFIG")


class _Recorder(Mapping[str, str]):
    """An environment that remembers which of its variables were read."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        # A dictionary, because it keeps the order.
        self.read: dict[str, None] = {}

    def __getitem__(self, name: str) -> str:
        value = self._env[name]
        self.read[name] = None
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._env)

    def __len__(self) -> int:
        return len(self._env)
