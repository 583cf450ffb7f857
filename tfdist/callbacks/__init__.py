"""Keras callbacks for training on several processes."""

from tfdist.callbacks.backup.backup_and_restore import BackupAndRestore
from tfdist.callbacks.broadcast_variables import BroadcastVariables
from tfdist.callbacks.learning_rate import (
    LearningRateScale,
    LearningRateSchedule,
    LearningRateWarmup,
    PrintLearningRate,
)
from tfdist.callbacks.metric_average import MetricAverage
from tfdist.callbacks.model_checkpoint import ModelCheckpoint
from tfdist.callbacks.rank_zero import RankZero
from tfdist.callbacks.sentinel import Sentinel
from tfdist.callbacks.throughput import Throughput
from tfdist.callbacks.verdict import Verdict

__all__ = [
    "BackupAndRestore",
    "BroadcastVariables",
    "LearningRateScale",
    "LearningRateSchedule",
    "LearningRateWarmup",
    "MetricAverage",
    "ModelCheckpoint",
    "PrintLearningRate",
    "RankZero",
    "Sentinel",
    "Throughput",
    "Verdict",
]
