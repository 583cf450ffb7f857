"""ModelCheckpoint: model files that the chief writes atomically."""

from pathlib import Path
from typing import Any

import numpy as np

from tfdist.callbacks.ranks import collective_of, is_chief_of
from tfdist.compat.keras.install import install
from tfdist.compat.keras.saving import CheckpointOfChief, strays_of


class ModelCheckpoint(CheckpointOfChief):
    """Callback that saves the model or its weights, like the callback of Keras.

    Give it to `fit` on every rank. Only the chief writes: first to a temporary file,
    which is renamed once it is complete and on disk. The next training removes
    temporary files that killed processes have left. All ranks know the same best value:
    under a strategy they have equal logs; with `tfdist.horovod` the chief's value
    counts, so put `MetricAverage` before this callback.

    `BackupAndRestore` also saves the best value. Without it, a restarted `fit` compares
    with `initial_value_threshold`.

    Args:
        filepath: The path of the file, with fields such as `{epoch:02d}` or
            `{val_loss:.2f}`. It ends in ".keras" or ".h5", or in ".weights.h5" with
            `save_weights_only`.
        monitor: The logged value that must improve. Default "val_loss".
        verbose: 1 to print a line per file on the chief. Default 0.
        save_best_only: Whether to save only if `monitor` improves. Default False.
        save_weights_only: Whether to save only the weights. Default False.
        mode: "min", "max" or "auto", which follows the name of `monitor`. Default
            "auto".
        save_freq: "epoch", or a number of batches. Default "epoch".
        initial_value_threshold: The value that the first file must improve on. Default
            None: the first file is always saved.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        >>> import keras
        >>> import tempfile
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("adam", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> file = f"{tempfile.mkdtemp()}/best.keras"
        >>> best = ModelCheckpoint(file, monitor="loss", save_best_only=True)
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[best])
    """

    best: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        install(is_alone=True)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Remove temporary files that killed processes have left."""
        super().on_train_begin(logs)
        if is_chief_of(self.model):
            for path in strays_of(Path(self.filepath)):
                path.unlink(missing_ok=True)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files."""
        return is_chief_of(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Save if due, and share the best value with all ranks."""
        super().on_epoch_end(epoch, logs)
        if self.save_best_only:
            best = None if self.best is None else float(np.asarray(self.best))
            collective = collective_of(self.model)
            self.best = collective.exchange("the best of ModelCheckpoint", best)[0]
