"""The private symbols of Keras in use, and the tested versions."""

import inspect
import pkgutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

# The oldest and the newest minor version that tests pass with.
OLDEST, NEWEST = (3, 8), (3, 15)

# The symbols that tfdist uses but does not replace, and the parameters that it passes,
# in order. Keras may have further parameters that are optional.
SYMBOLS = {
    "keras:Variable._initialize": "self value",
    "keras.src.backend.common.global_state:GLOBAL_STATE_TRACKER": "",
    "keras.src.backend.common.global_state:get_global_attribute": "name",
    "keras.src.backend.common.stateless_scope:get_stateless_scope": "",
    "keras.src.backend.common.variables:initialize_all_variables": "",
    "keras.src.backend.tensorflow:distribution_lib": "",
    "keras.src.backend.tensorflow.trainer:TFEpochIterator": "distribute_strategy",
    "keras.src.callbacks.model_checkpoint:ModelCheckpoint._save_model": (
        "self epoch batch logs"
    ),
    "keras.src.callbacks.progbar_logger:ProgbarLogger._finalize_progbar": "self logs",
    "keras.src.callbacks.progbar_logger:ProgbarLogger._maybe_init_progbar": "self",
    "keras.src.callbacks.progbar_logger:ProgbarLogger._update_progbar": (
        "self batch logs"
    ),
    "keras.src.losses.loss:apply_mask": "sample_weight mask dtype reduction",
    "keras.src.optimizers.base_optimizer:BaseOptimizer._apply_weight_decay": (
        "self variables"
    ),
    "keras.src.optimizers.base_optimizer:BaseOptimizer._get_current_learning_rate": (
        "self"
    ),
    "keras.src.optimizers.base_optimizer:BaseOptimizer._get_variable_index": (
        "self variable"
    ),
    "keras.src.optimizers.base_optimizer:BaseOptimizer._use_weight_decay": (
        "self variable"
    ),
    "keras.src.random.seed_generator:global_seed_generator": "",
    "keras.src.trainers.data_adapters.array_data_adapter:ArrayDataAdapter": "",
    "keras.src.trainers.data_adapters.py_dataset_adapter:PyDatasetAdapter": "",
    "keras.src.trainers.data_adapters.py_dataset_adapter:random": "",
    "keras.src.trainers.data_adapters.tf_dataset_adapter:TFDatasetAdapter": (
        "dataset class_weight"
    ),
    "keras.src.trainers.epoch_iterator:EpochIterator._enumerate_iterator": "self",
    "keras.src.trainers.epoch_iterator:EpochIterator.catch_stop_iteration": "self",
    "keras.src.utils.python_utils:is_default": "method",
}


def check(symbols: Mapping[str, str]) -> None:
    """Raise ImportError if a Keras symbol is missing or has another signature."""
    problems = [
        problem
        for symbol, parameters in symbols.items()
        if (problem := _problem(symbol, parameters.split()))
    ]
    if problems:
        tested = f">={_dotted(OLDEST)},<{_dotted((NEWEST[0], NEWEST[1] + 1))}"
        raise ImportError(
            f"Keras {keras.__version__} lacks or has changed what tfdist replaces. "
            f"Received: {'; '.join(problems)}. Install a version that tfdist was "
            f"tested with: pip install 'keras{tested}'."
        )


def warn_if_untested(symbols: Sequence[str]) -> None:
    """Warn if this version of Keras is untested; `symbols` were found as expected."""
    if is_at_least(*OLDEST) and not is_at_least(NEWEST[0], NEWEST[1] + 1):
        return
    names = [symbol.partition(":")[2] for symbol in symbols]
    warnings.warn(
        "tfdist was not tested with this version of Keras. "
        f"Received: Keras {keras.__version__}; tested are {_dotted(OLDEST)} to "
        f"{_dotted(NEWEST)}. These {len(names)} symbols were checked and found as "
        f"expected: {', '.join(names)}. Run `tfdist verify` on your own script: it "
        "compares what several processes end with to what one ends with.",
        RuntimeWarning,
        stacklevel=2,
    )


def parameters_of(replacement: Callable[..., Any]) -> str:
    """Return the parameters of a replaced function; "*" stands for any further."""
    given = inspect.signature(replacement).parameters.values()
    _, *names = [p.name for p in _named(replacement)]
    passes_on = any(p.kind is p.VAR_POSITIONAL for p in given)
    return " ".join([*names, "*"] if passes_on else names)


def is_at_least(*version: int) -> bool:
    """Return whether Keras has this version or a newer one."""
    return tuple(map(int, keras.__version__.split(".")[:2])) >= version


def _problem(symbol: str, wanted: list[str]) -> str | None:
    """Describe the mismatch of a symbol, if any."""
    name = symbol.replace(":", ".")
    try:
        found: Any = pkgutil.resolve_name(symbol)
    except (ImportError, AttributeError):
        return f"{name}, which is missing"
    if not wanted:
        return None
    function = getattr(found, "fget", found)
    any_further = wanted[-1] == "*"
    wanted = [name for name in wanted if name != "*"]
    parameters = _named(function)
    first, further = parameters[: len(wanted)], parameters[len(wanted) :]
    any_further |= all(p.default is not p.empty for p in further)
    if [p.name for p in first] == wanted and any_further:
        return None
    return f"{name}{inspect.signature(function)} instead of ({', '.join(wanted)})"


def _named(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function but `*args` and `**kwargs`."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p for p in parameters if p.kind not in variadic]


def _dotted(version: tuple[int, int]) -> str:
    """Format a version for pip."""
    return ".".join(map(str, version))
