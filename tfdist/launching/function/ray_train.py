"""The backend that makes the workers of Ray Train ranks."""

# Ray's controller and workers import this before they know their ranks: TensorFlow is
# not loaded.
from typing import Any

from tfdist.launching.function.on_ray import ray_address, ray_cpus
from tfdist.launching.function.worker import Rendezvous, become_rank

try:
    import ray
    from ray.train.backend import Backend, BackendConfig
except ImportError as error:
    raise ImportError(
        "tfdist.ray needs Ray Train, which is not installed here. "
        "Run: pip install 'tfdist[ray]'",
        name="ray",
    ) from error


class Config(BackendConfig):
    """Backend of Ray Train with which each worker is a rank of tfdist.

    Give it to Ray's `DataParallelTrainer`, and make a strategy such as
    `tfdist.strategies.AllReduceStrategy` in the training function. Ray's own
    `TensorflowConfig` sets TF_USE_LEGACY_KERAS, which makes tf.keras Keras 2; this one
    unsets it. After a failure, Ray starts new workers by its `FailureConfig`, and
    `tfdist.callbacks.BackupAndRestore` resumes.

    Example:
        >>> from ray.train import ScalingConfig
        >>> from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
        >>> trainer = DataParallelTrainer(
        ...     print,
        ...     backend_config=Config(),
        ...     scaling_config=ScalingConfig(num_workers=2),
        ... )
        >>> trainer.fit()  # doctest: +SKIP
    """

    @property
    def backend_cls(self) -> type[Backend]:
        """The class of which Ray makes an instance."""
        return _Backend


class _Backend(Backend):
    """Tells each worker of Ray Train its rank, before the training function."""

    def on_start(self, worker_group: Any, backend_config: Config) -> None:
        """Make the workers ranks, in Ray's order."""
        addresses, rendezvous = worker_group.execute(ray_address), Rendezvous()
        ray.get(
            [
                worker_group.execute_single_async(
                    rank, _become_rank, rendezvous, addresses, rank
                )
                for rank in range(len(addresses))
            ]
        )


def _become_rank(rendezvous: Rendezvous, addresses: list[str], rank: int) -> None:
    """Make this worker a rank."""
    become_rank(rendezvous, addresses, rank, ray_cpus())
