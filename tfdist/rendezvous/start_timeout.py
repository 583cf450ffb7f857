"""How long processes may take to come, when whoever has started them says so."""

import math
import os
from collections.abc import Mapping

START_TIMEOUT_VARIABLE = "TFDIST_START_TIMEOUT"


def start_timeout_seconds(
    default: float, env: Mapping[str, str] | None = None
) -> float:
    """Return how long a process waits for the others, if its program does not say it.

    Args:
        default: The time in seconds where nobody says anything.
        env: The environment. Default: that of this process.

    Returns:
        The time in seconds that `tfdist run --start-timeout` has given, or the default.

    Raises:
        ValueError: If what is given is no time.

    Example:
        >>> start_timeout_seconds(300.0, {"TFDIST_START_TIMEOUT": "20"})
        20.0
    """
    text = (os.environ if env is None else env).get(START_TIMEOUT_VARIABLE)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"{START_TIMEOUT_VARIABLE} must be a positive number of seconds. "
            f"Received: {START_TIMEOUT_VARIABLE}={text!r}. "
            "Give it to `tfdist run --start-timeout`, or unset it."
        )
    return seconds
