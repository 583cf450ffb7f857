"""One of several devices of a process, within a step of Keras."""

from tfdist.compat.mirrored import MirroredReplicaContext
from tfdist.training.replica_context import WeighingReplicaContext


class StepReplicaContext(WeighingReplicaContext, MirroredReplicaContext):  # type: ignore[misc]
    """A replica of TensorFlow's, whose all-reduce weighs each by its rows."""
