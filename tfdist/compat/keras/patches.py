"""The symbols of Keras that tfdist replaces, with their replacements."""

from collections.abc import Callable
from typing import Any

import keras
from keras.src.saving import saving_api

from tfdist.compat import (
    chief_output,
    distribution,
    divided_tables,
    owned_variables,
    random_pipelines,
    sparse_updates,
    watching,
)
from tfdist.compat.keras import (
    callbacks,
    compile_checks,
    layers,
    losses_and_metrics,
    optimizer,
    pure_step,
    saving,
    sharded_optimizer,
    trainer,
    variables,
)

# By module of `keras.src`. A replacement gets the original, then what Keras passes.
_BY_MODULE: dict[str, dict[str, Callable[..., Any]]] = {
    "backend": {
        "Variable.__float__": variables.float_of_copies,
        "Variable.__int__": variables.int_of_copies,
        "Variable._direct_assign": variables.assign_to_copies,
        "Variable._initialize_with_initializer": variables.initialize_where_it_fits,
        "Variable.assign": variables.assign_and_note,
        "Variable.handle": pure_step.handle_of_read,
        "Variable.numpy": variables.array_by_parts,
    },
    "backend.tensorflow.trainer": {
        "TensorFlowTrainer._aggregate_additional_loss": (
            losses_and_metrics.add_loss_by_share
        ),
    },
    "backend.tensorflow.optimizer": {
        "TFOptimizer._all_reduce_sum_gradients": optimizer.skip_if_reduced,
        "TFOptimizer._apply_weight_decay": owned_variables.decay_own,
        "TFOptimizer._backend_update_step": owned_variables.update_own,
        "TFOptimizer._distributed_tf_update_step": sharded_optimizer.update_by_shard,
        "TFOptimizer._overwrite_model_variables_with_average_value": (
            sharded_optimizer.average_by_shard
        ),
        "TFOptimizer._var_key": sharded_optimizer.key_of_whole,
        "TFOptimizer.add_variable_from_reference": sharded_optimizer.add_by_shard,
        "TFOptimizer.assign_add": sparse_updates.assign_each_once,
        "TFOptimizer.assign_sub": sparse_updates.assign_each_once,
    },
    "callbacks.callback_list": {
        "CallbackList.__init__": callbacks.init_for_rank,
        "CallbackList.on_epoch_begin": callbacks.then_agree("epoch_begin"),
        "CallbackList.on_epoch_end": callbacks.end_epoch,
        "CallbackList.on_train_batch_begin": callbacks.then_agree("batch_begin"),
        "CallbackList.on_train_batch_end": callbacks.then_agree("batch_end"),
        "CallbackList.on_train_begin": callbacks.begin_training,
    },
    "layers": {
        "BatchNormalization._moments": layers.moments_of_all_rows,
        "Embedding.build": divided_tables.build_divided,
        "Embedding.call": pure_step.look_up_rows,
        "Layer.__call__": layers.call_inside,
        "Discretization.adapt": layers.adapt_to_whole,
        "IntegerLookup.adapt": layers.adapt_to_whole,
        "Normalization.adapt": layers.adapt_to_whole,
        "StringLookup.adapt": layers.adapt_to_whole,
        "TextVectorization.adapt": layers.adapt_to_whole,
    },
    "legacy.saving.legacy_h5_format": {
        "load_model_from_hdf5": saving.load_existing,
        "save_model_to_hdf5": saving.save_once,
    },
    "losses.loss": {"reduce_weighted_values": losses_and_metrics.reduce_over_ranks},
    "metrics.metric": {"Metric.__init__": losses_and_metrics.init_shared},
    "metrics.reduction_metrics": {
        "Mean.update_state": losses_and_metrics.update_by_share,
        "Sum.update_state": losses_and_metrics.add_count,
    },
    "models.model": {
        "Model._get_metrics_result_or_logs": trainer.reduce_metrics,
        "Model._make_function": trainer.make_joint_function,
        "Model._maybe_symbolic_build": trainer.build_equal,
        "Model._resolve_auto_jit_compile": compile_checks.choose_xla,
        "Model.compile": compile_checks.compile_for_strategy,
        "Model.export": saving.export_once,
        "Model.fit": trainer.fit_together,
        "Model.make_predict_function": trainer.make_joint_predict_function,
        "Model.predict": trainer.predict_equal,
        "Model.reset_metrics": losses_and_metrics.reset_after_steps,
    },
    "optimizers.adagrad": {
        "Adagrad.update_step": sharded_optimizer.update_rows_on_servers
    },
    "optimizers.base_optimizer": {
        "BaseOptimizer._backend_reset_gradient_accumulators": (
            divided_tables.reset_parts
        ),
        "BaseOptimizer._clip_gradients": optimizer.reduce_then_clip,
        "BaseOptimizer._filter_empty_gradients": optimizer.prepare_then_filter,
        "BaseOptimizer._update_model_variables_moving_average": (
            sharded_optimizer.average_by_shard
        ),
        "BaseOptimizer.add_variable_from_reference": owned_variables.add_owned,
        "BaseOptimizer.apply": optimizer.apply_where_variables_are,
        "BaseOptimizer.build": owned_variables.build_owned,
        "BaseOptimizer.finalize_variable_values": owned_variables.finalize_and_share,
        "BaseOptimizer.save_own_variables": saving.save_own_by_parts,
    },
    "optimizers.loss_scale_optimizer": {
        "LossScaleOptimizer._common_apply": optimizer.reduce_then_check_finite,
        "LossScaleOptimizer._tf_apply": optimizer.skip_if_building,
        "LossScaleOptimizer.check_finite": divided_tables.finite_on_all_ranks,
    },
    "random.seed_generator": {"SeedGenerator.next": trainer.next_seed_of_rank},
    "regularizers": {
        "L1.__call__": layers.penalty_of_all_rows,
        "L1L2.__call__": layers.penalty_of_all_rows,
        "L2.__call__": layers.penalty_of_all_rows,
    },
    "saving.saving_api": {
        # The last that `load_model` looks for, since 3.13; older ones say less.
        **dict.fromkeys(
            {"is_orbax_checkpoint"} & set(vars(saving_api)), saving.load_existing
        ),
        "save_model": saving.ask_once,
        "save_weights": saving.ask_once,
    },
    "saving.saving_lib": {
        f"{saving.ENTRY}.__getitem__": saving.read_by_parts,
        f"{saving.ENTRY}.__setitem__": saving.write_by_parts,
        "_load_state": saving.load_by_parts,
        "is_memory_sufficient": saving.is_memory_for_whole,
        "load_weights_only": saving.load_existing_weights,
        "save_model": saving.save_once,
        "save_weights_only": saving.save_once,
    },
}
PATCHES: dict[str, Callable[..., Any]] = {
    "keras.models:save_model": saving.ask_once,
    "keras.saving:save_model": saving.ask_once,
    "keras.saving:save_weights": saving.ask_once,
    "tensorflow:GradientTape.gradient": losses_and_metrics.gradient_of_rows,
    "tensorflow:nn.compute_average_loss": losses_and_metrics.average_by_share,
}
PATCHES |= {
    f"keras.src.{module}:{name}": replacement
    for module, replacements in _BY_MODULE.items()
    for name, replacement in replacements.items()
}

# Symbols that a job of several processes replaces, too.
PATCHES_OF_JOBS: dict[str, Callable[..., Any]] = {
    "keras:Model._make_function": trainer.make_function_under_strategy,
}

# Symbols that a program replaces whose strategy is made for it. Deletable when Keras
# distributes on TensorFlow.
PATCHES_OF_DEFAULT_STRATEGY: dict[str, Callable[..., Any]] = dict.fromkeys(
    (
        "keras.distribution:set_distribution",
        "keras.src.distribution.distribution_lib:set_distribution",
    ),
    distribution.set_if_parallel,
)

# Symbols of Keras that only ranks other than the chief replace.
PATCHES_OF_OTHER_RANKS: dict[str, Callable[..., Any]] = {
    "keras.src.models.model:Model.summary": chief_output.summary_elsewhere,
    "keras.src.utils.io_utils:print_msg": chief_output.print_elsewhere,
}

_FUNCTION_CALL = (
    "tensorflow.python.eager.polymorphic_function.polymorphic_function:"
    "Function.__call__"
)
# Symbols of TensorFlow, likewise. Deletable when a `tf.function` can be inlined, when a
# replica context folds its number into seeds, when the extended part of a strategy says
# which process writes, and with `random_pipelines`.
TENSORFLOW_PATCHES: dict[str, Callable[..., Any]] = {
    **{
        f"tensorflow:data.Dataset.{name}": random_pipelines.map_alike
        for name in ("flat_map", "interleave", "map")
    },
    _FUNCTION_CALL: trainer.call_anew_in_step,
    "tensorflow.python.framework.random_seed:get_seed": (
        trainer.next_operation_seeds_of_rank
    ),
    "tensorflow.python.checkpoint.checkpoint:Checkpoint._write": (
        saving.write_checkpoint_once
    ),
    "tensorflow.python.saved_model.save:save_and_return_nodes": saving.save_model_once,
}

# Symbols that only a process with an observer replaces, around all other replacements.
PATCHES_OF_OBSERVERS: dict[str, Callable[..., Any]] = {
    _FUNCTION_CALL: watching.call_function,
    "keras:Model.jit_compile": watching.is_compiled,
    "keras.callbacks:History.on_epoch_end": watching.end_epoch,
    "keras.layers:Layer.__call__": watching.call_layer,
    "keras.optimizers:Optimizer.apply": watching.apply,
    "keras.optimizers:Optimizer.apply_gradients": watching.apply_gradients,
}
if "apply" in vars(keras.optimizers.LossScaleOptimizer):
    PATCHES_OF_OBSERVERS["keras.optimizers:LossScaleOptimizer.apply"] = watching.apply
