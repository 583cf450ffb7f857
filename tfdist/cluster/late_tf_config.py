"""Whether TF_CONFIG was set when it was too late: after the strategy had looked."""

import os
from collections.abc import Mapping

_VARIABLE = "TF_CONFIG"


class LateTFConfig:
    """Remembers what TF_CONFIG was when a strategy was made.

    A program that sets it afterwards, as some notebooks do, trains alone and looks as
    if it did not.

    Args:
        env: The environment. Default: that of this process.

    Example:
        >>> env = {}
        >>> late = LateTFConfig(env)
        >>> env["TF_CONFIG"] = '{"cluster": {"worker": ["a:1", "b:1"]}}'
        >>> late.warning().split(".")[0]
        'TF_CONFIG was set after the strategy was made, which has not read it'
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env
        self._before = self._env.get(_VARIABLE)

    def warning(self) -> str:
        """Return what to say if it has another value now, the first time it has.

        Returns:
            A warning, or nothing.
        """
        now = self._env.get(_VARIABLE)
        if not now or now == self._before:
            return ""
        self._before = now
        return (
            f"{_VARIABLE} was set after the strategy was made, which has not read it. "
            f"Received: {_VARIABLE}={now[:200]}. Set it before the program makes a "
            "strategy, best before it starts."
        )
