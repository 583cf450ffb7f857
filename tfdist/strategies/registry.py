"""Strategies by name."""

import difflib
from collections.abc import Callable
from typing import Any

from tfdist.cluster import detect
from tfdist.strategies.allreduce import AllReduceStrategy
from tfdist.strategies.horovod import HorovodStrategy
from tfdist.strategies.parameter_server import ParameterServerStrategy

# Name -> what makes it, and what it is in one line.
STRATEGIES: dict[str, tuple[Callable[..., Any], str]] = {
    "all_reduce": (
        AllReduceStrategy,
        "synchronous data parallel, one replica a process",
    ),
    "horovod": (HorovodStrategy, "the same on Horovod, with Horovod's options"),
    "parameter_server": (
        ParameterServerStrategy,
        "variables on servers, gradients from workers at their own pace or in step",
    ),
}


def create(name: str = "auto", **options: Any) -> Any:
    """Make a strategy by its name, for programs that leave the choice to a flag.

    Args:
        name: A name of `STRATEGIES`, or "auto", which chooses for the environment.
            Default "auto".
        **options: What the strategy's constructor takes.

    Returns:
        The strategy.

    Raises:
        ValueError: If there is no strategy of that name.

    Example:
        >>> strategy = create("all_reduce")
        >>> strategy.num_replicas_in_sync
        1
    """
    if name == "auto":
        name = "parameter_server" if detect().ps else "all_reduce"
    if name not in STRATEGIES:
        nearest = difflib.get_close_matches(name, STRATEGIES, n=1)
        advice = f"Did you mean {nearest[0]!r}? " if nearest else ""
        raise ValueError(
            f"There is no strategy of this name. Received: name={name!r}. {advice}"
            f"Use 'auto' or one of: {', '.join(sorted(STRATEGIES))}."
        )
    factory, _ = STRATEGIES[name]
    return factory(**options)
