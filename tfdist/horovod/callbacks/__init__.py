"""Horovod's callbacks for `fit`, under Horovod's names."""

from tfdist.horovod.callbacks.consistency import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
)
from tfdist.horovod.callbacks.learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from tfdist.horovod.elastic import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)

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
