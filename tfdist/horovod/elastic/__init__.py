"""Training that goes on when ranks are lost or added, under Horovod's names."""

from tfdist.horovod.callbacks.commit_state import CommitStateCallback
from tfdist.horovod.callbacks.update_batch_state import UpdateBatchStateCallback
from tfdist.horovod.callbacks.update_epoch_state import UpdateEpochStateCallback
from tfdist.horovod.elastic.keras_state import KerasState, TensorFlowKerasState
from tfdist.horovod.elastic.recovery import run
from tfdist.horovod.elastic.tensorflow_state import TensorFlowState

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
