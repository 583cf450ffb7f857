"""Strategies of tfdist in a training of Ray Train.

`tfdist.launch(..., on="ray")` needs nothing of this module.
"""

import tempfile
from pathlib import Path
from typing import Any

import keras

from tfdist.callbacks.ranks import is_chief_of
from tfdist.launching.function.ray_train import Config

# After that of Config, whose error names the extra.
import ray.train  # isort: skip

__all__ = ["Config", "Report"]


class Report(keras.callbacks.Callback):
    """Report the logs of each epoch to Ray Train, with the model as a checkpoint.

    The checkpoint is a folder with the file `model.keras`. Ray waits in each report
    for all workers.

    Args:
        checkpoint: Whether to save the model. Default True.

    Example:
        >>> report = Report(checkpoint=False)
    """

    def __init__(self, *, checkpoint: bool = True) -> None:
        super().__init__()
        self._checkpoint = checkpoint

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Report on every rank; the chief has the checkpoint."""
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        if not self._checkpoint:
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory() as folder:
            self.model.save(Path(folder, "model.keras"))
            checkpoint = None
            if is_chief_of(self.model):
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)
