"""Keeping our functions out of autograph's sight, with their types."""

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

_Function = TypeVar("_Function", bound=Callable[..., Any])


def unseen(function: _Function) -> _Function:
    """Let autograph call a function as it is, and all that it calls.

    Args:
        function: A function that holds no code of the script's.

    Returns:
        The function, marked.
    """
    marked: _Function = tf.autograph.experimental.do_not_convert(function)
    return marked
