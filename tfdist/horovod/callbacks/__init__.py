"""Horovod's callbacks for `fit`, under its names."""

from tfdist.horovod.callbacks.best_model_checkpoint import BestModelCheckpoint
from tfdist.horovod.callbacks.broadcast_global_variables import (
    BroadcastGlobalVariablesCallback,
)
from tfdist.horovod.callbacks.commit_state import CommitStateCallback
from tfdist.horovod.callbacks.learning_rate_schedule import LearningRateScheduleCallback
from tfdist.horovod.callbacks.learning_rate_warmup import LearningRateWarmupCallback
from tfdist.horovod.callbacks.metric_average import MetricAverageCallback
from tfdist.horovod.callbacks.update_batch_state import UpdateBatchStateCallback
from tfdist.horovod.callbacks.update_epoch_state import UpdateEpochStateCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CommitStateCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]
