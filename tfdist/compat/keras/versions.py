"""The private symbols of Keras in use, and the tested versions."""

import inspect
import pkgutil
import warnings
from collections.abc import Iterator
from typing import Any

import keras

# The oldest and the newest minor version that tests pass with.
OLDEST, NEWEST = (3, 8), (3, 15)

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

# By module: the symbol, and the parameters that tfdist passes, in order. Keras may have
# further parameters that are optional.
SYMBOLS = {
    "keras": {
        "Variable.__float__": "self",
        "Variable.__int__": "self",
        "Variable._direct_assign": "self value",
        "Variable._initialize": "self value",
        "Variable._initialize_with_initializer": "self initializer",
        "Variable.assign": "self value",
        "Variable.handle": "",
        "layers.BatchNormalization._moments": "self inputs mask",
        "layers.Embedding.call": "self inputs",
        "regularizers.L1.__call__": "self x",
        "regularizers.L1L2.__call__": "self x",
        "regularizers.L2.__call__": "self x",
    },
    "keras.src.backend.common.global_state": {
        "get_global_attribute": "name",
    },
    "keras.src.backend.common.stateless_scope": {
        "get_stateless_scope": "",
    },
    "keras.src.backend.tensorflow.optimizer": {
        "TFOptimizer._all_reduce_sum_gradients": "self grads_and_vars",
        "TFOptimizer._distributed_tf_update_step": (
            "self distribution grads_and_vars learning_rate"
        ),
        "TFOptimizer._overwrite_model_variables_with_average_value": (
            "self trainable_variables"
        ),
        "TFOptimizer._var_key": "self variable",
        "TFOptimizer.add_variable_from_reference": "self reference_variable",
    },
    "keras.src.backend.tensorflow.trainer": {
        "TFEpochIterator": "distribute_strategy",
        "TensorFlowTrainer._make_function": "self step_function",
        "TensorFlowTrainer._maybe_symbolic_build": "self iterator data_batch",
        "TensorFlowTrainer.fit": "self",
        "TensorFlowTrainer.make_predict_function": "self force",
        "TensorFlowTrainer.predict": "self x",
    },
    "keras.src.callbacks.backup_and_restore": {
        "BackupAndRestore": "",
    },
    "keras.src.callbacks.callback_list": {
        "CallbackList.__init__": "self callbacks add_history add_progbar model",
        "CallbackList.on_epoch_begin": "self epoch logs",
        "CallbackList.on_epoch_end": "self epoch logs",
        "CallbackList.on_train_batch_begin": "self batch logs",
        "CallbackList.on_train_batch_end": "self batch logs",
        "CallbackList.on_train_begin": "self logs",
    },
    "keras.src.callbacks.lambda_callback": {
        "LambdaCallback": "",
    },
    "keras.src.callbacks.progbar_logger": {
        "ProgbarLogger._finalize_progbar": "self logs",
        "ProgbarLogger._maybe_init_progbar": "self",
        "ProgbarLogger._update_progbar": "self batch logs",
    },
    "keras.src.callbacks.terminate_on_nan": {
        "TerminateOnNaN": "",
    },
    "keras.src.legacy.saving.legacy_h5_format": {
        "save_model_to_hdf5": "model filepath",
    },
    "keras.src.losses.loss": {
        "apply_mask": "sample_weight mask dtype reduction",
        "reduce_weighted_values": "values sample_weight mask reduction dtype",
    },
    "keras.src.metrics.reduction_metrics": {
        "Mean.update_state": "self values sample_weight",
        "Sum.update_state": "self values sample_weight",
    },
    "keras.src.optimizers.base_optimizer": {
        "BaseOptimizer._apply_weight_decay": "self variables",
        "BaseOptimizer._clip_gradients": "self grads",
        "BaseOptimizer._filter_empty_gradients": "self grads vars",
        "BaseOptimizer._get_current_learning_rate": "self",
        "BaseOptimizer._get_variable_index": "self variable",
        "BaseOptimizer._update_model_variables_moving_average": (
            "self trainable_variables"
        ),
        "BaseOptimizer._use_weight_decay": "self variable",
        "BaseOptimizer.apply": "self grads trainable_variables",
    },
    "keras.src.optimizers.loss_scale_optimizer": {
        "LossScaleOptimizer._common_apply": "self grads trainable_variables",
    },
    "keras.src.random.seed_generator": {
        "global_seed_generator": "",
        "SeedGenerator.next": "self ordered",
    },
    "keras.src.saving.saving_lib": {
        "save_model": "model filepath",
        "save_weights_only": "model filepath",
    },
    "keras.src.trainers.data_adapters.array_data_adapter": {
        "ArrayDataAdapter": "",
    },
    "keras.src.trainers.data_adapters.py_dataset_adapter": {
        "PyDatasetAdapter": "",
        "random": "",
    },
    "keras.src.trainers.data_adapters.tf_dataset_adapter": {
        "TFDatasetAdapter": "dataset class_weight",
    },
    "keras.src.trainers.epoch_iterator": {
        "EpochIterator._enumerate_iterator": "self",
        "EpochIterator.catch_stop_iteration": "self",
    },
    "keras.src.trainers.trainer": {
        "Trainer._compute_loss": "self x y y_pred sample_weight training",
        "Trainer._get_metrics_result_or_logs": "self logs",
        "Trainer.compile": "self optimizer",
        "Trainer.reset_metrics": "self",
    },
    "keras.src.utils.python_utils": {
        "is_default": "method",
    },
}


def check_symbols() -> None:
    """Raise ImportError if a Keras symbol is missing or has another signature."""
    problems = [
        problem
        for module, name, wanted in _entries()
        if (problem := _problem(module, name, wanted.split()))
    ]
    if problems:
        tested = f">={_dotted(OLDEST)},<{_dotted((NEWEST[0], NEWEST[1] + 1))}"
        raise ImportError(
            f"Keras {keras.__version__} lacks or has changed what tfdist replaces. "
            f"Received: {'; '.join(problems)}. Install a version that tfdist was "
            f"tested with: pip install 'keras{tested}'."
        )


def warn_if_untested() -> None:
    """Warn if this version of Keras is untested."""
    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if OLDEST <= version <= NEWEST:
        return
    names = [name for _, name, _ in _entries()]
    warnings.warn(
        "tfdist was not tested with this version of Keras. "
        f"Received: Keras {keras.__version__}; tested are {_dotted(OLDEST)} to "
        f"{_dotted(NEWEST)}. These {len(names)} symbols were checked and found as "
        f"expected: {', '.join(names)}. Run `tfdist verify` on your own script: it "
        "compares what several processes end with to what one ends with.",
        RuntimeWarning,
        stacklevel=2,
    )


def _entries() -> Iterator[tuple[str, str, str]]:
    """Yield the module, name and expected parameters of each symbol."""
    for module, symbols in SYMBOLS.items():
        for name, wanted in symbols.items():
            yield module, name, wanted


def _problem(module: str, name: str, wanted: list[str]) -> str | None:
    """Describe the mismatch of a symbol, if any."""
    try:
        symbol: Any = pkgutil.resolve_name(f"{module}:{name}")
    except (ImportError, AttributeError):
        return f"{module}.{name}, which is missing"
    if not wanted:
        return None
    found = inspect.signature(symbol)
    named = [p for p in found.parameters.values() if p.kind not in _VARIADIC]
    first, further = named[: len(wanted)], named[len(wanted) :]
    can_be_left_out = all(p.default is not p.empty for p in further)
    if [p.name for p in first] == wanted and can_be_left_out:
        return None
    return f"{module}.{name}{found} instead of ({', '.join(wanted)})"


def _dotted(version: tuple[int, int]) -> str:
    """Format a version for pip."""
    return ".".join(map(str, version))
