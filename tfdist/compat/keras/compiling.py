"""What a model is compiled with, looked at by the strategy that it was made for."""

import functools
from collections.abc import Callable
from typing import Any

from keras.src.trainers.trainer import Trainer


def patch() -> None:
    """Let strategies refuse what they would do wrong, before any work starts."""
    Trainer.compile = _then_checked(Trainer.compile)


def _then_checked(compile: Callable[..., None]) -> Callable[..., None]:
    """Return Keras's function, after which the strategy looks at the model."""

    @functools.wraps(compile)
    def compile_then_check(self: Any, *args: Any, **kwargs: Any) -> None:
        compile(self, *args, **kwargs)
        strategy = getattr(self, "_distribute_strategy", None)
        check = getattr(strategy, "check_compiled", None)
        if check is not None:
            check(self)

    return compile_then_check
