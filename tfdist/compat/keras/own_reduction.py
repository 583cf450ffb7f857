"""Optimizers that reduce gradients by themselves, without a strategy: Horovod's way."""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
from keras.src.trainers.trainer import Trainer

from tfdist.compat.keras.learning_rates import inner_optimizers

# Where an optimizer keeps which variables do not decay.
_EXCLUSIONS = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")


class OwnReduction:
    """What an optimizer inherits that talks to the other ranks itself.

    A loss-scale optimizer around it, which `compile` puts there for models in float16,
    decides on finiteness before it calls the inner optimizer. It hands its work to
    this one instead, and all ranks decide on the same gradients.
    """

    # Whether the gradients that come now have been reduced already.
    is_reduced = False

    def apply_reduced(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        apply: Callable[[Sequence[Any]], None],
    ) -> None:
        """Reduce gradients over ranks, and call `apply` with the results.

        Args:
            grads: The gradients of this rank, or None.
            variables: What they are the gradients of.
            apply: Takes the reduced gradients; within it, `is_reduced` holds.
        """
        raise NotImplementedError

    @contextmanager
    def gradients_are_reduced(self) -> Iterator[None]:
        """Mark a block in which gradients come that have been reduced."""
        before, self.is_reduced = self.is_reduced, True
        try:
            yield
        finally:
            self.is_reduced = before


def optimizers_in(optimizer: Any) -> list[Any]:
    """Return an optimizer, and those inside of it.

    Args:
        optimizer: Any optimizer of Keras.
    """
    inner = map(optimizers_in, inner_optimizers(optimizer))
    return [optimizer, *itertools.chain.from_iterable(inner)]


def reduces_by_itself(optimizer: Any) -> bool:
    """Tell whether an optimizer, or one inside of it, talks to the other ranks itself.

    Args:
        optimizer: Any optimizer of Keras.
    """
    return any(isinstance(one, OwnReduction) for one in optimizers_in(optimizer))


def config_of(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's config, with a learning rate that needs no registration.

    Args:
        optimizer: Any optimizer of Keras.
    """
    config: dict[str, Any] = optimizer.get_config()
    rate = getattr(optimizer, "_learning_rate", None)
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    if "learning_rate" in config and (is_schedule or callable(rate)):
        config["learning_rate"] = rate
    return config


def remake(optimizer: Any, kind: type) -> Any:
    """Make an optimizer of another class with the same settings.

    Args:
        optimizer: Any optimizer of Keras.
        kind: A subclass of its class.

    Returns:
        An optimizer without variables, whose inner optimizers are made anew, too.

    Raises:
        ValueError: If the config of the optimizer does not tell all of its arguments.
    """
    made = _made_of_config(optimizer, kind)
    pairs = zip(optimizers_in(optimizer), optimizers_in(made), strict=True)
    for given, new in pairs:
        _check_equal(given, new)
        for name in _EXCLUSIONS:
            # Keras has them only where somebody has excluded something.
            if name in vars(given):
                setattr(new, name, vars(given)[name])
    return made


def _made_of_config(optimizer: Any, kind: Any) -> Any:
    """Make an optimizer of a config; one inside of it needs no registration either."""
    config = config_of(optimizer)
    if "inner_optimizer" not in config:
        return kind.from_config(config)
    inner = optimizer.inner_optimizer
    return kind(**config | {"inner_optimizer": _made_of_config(inner, type(inner))})


def _check_equal(given: Any, made: Any) -> None:
    """Make sure that a config has told all that an optimizer was made with."""
    names = [n for n in inspect.signature(type(given)).parameters if n != "name"]
    lost = [name for name in names if _setting(given, name) != _setting(made, name)]
    if lost or _config_to_compare(given) != _config_to_compare(made):
        raise ValueError(
            "The config of an optimizer must tell all of its arguments. Received: "
            f"{type(given).__name__}, whose config makes one that differs in "
            f"{', '.join(lost) or 'its own config'}. Add to get_config what is missing."
        )


def _config_to_compare(optimizer: Any) -> dict[str, Any]:
    """Return a config without names, which may count up, and without what is inside."""
    config: dict[str, Any] = optimizer.get_config()
    return {k: v for k, v in config.items() if k not in ("name", "inner_optimizer")}


def _setting(optimizer: Any, name: str) -> Any:
    """Return a setting that can be compared: a plain value, or None for others."""
    attributes = vars(optimizer)
    value = attributes.get(name, attributes.get(f"_{name}"))
    if isinstance(value, keras.Variable) and not value.shape:
        return float(value)
    return value if isinstance(value, bool | int | float | str) else None


def patch() -> None:
    """Let `compile` keep what XLA cannot compile out of its reach."""
    Trainer.compile = _without_jit(Trainer.compile)


def _without_jit(compile: Callable[..., None]) -> Callable[..., None]:
    """Return Keras's function, which uses XLA where it finds a GPU."""
    parameters = inspect.signature(compile)

    @functools.wraps(compile)
    def compile_without_jit(self: Any, *args: Any, **kwargs: Any) -> None:
        compile(self, *args, **kwargs)
        if reduces_by_itself(self.optimizer) and self.jit_compile:
            given = parameters.bind(self, *args, **kwargs).arguments
            if given.get("jit_compile", "auto") is True:
                raise ValueError(
                    "XLA cannot compile a step that talks to other ranks. Received: "
                    f"jit_compile=True and a distributed {self.optimizer.name}. Leave "
                    "jit_compile out, or train under tfdist.strategies.HorovodStrategy,"
                    " which compiles what lies between."
                )
            self.jit_compile = False

    return compile_without_jit
