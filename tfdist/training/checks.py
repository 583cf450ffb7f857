"""What every strategy makes sure of before it begins."""

from typing import Any


def check_built(trainer: Any) -> None:
    """Refuse to predict with a model that has no weights yet.

    Args:
        trainer: The model.

    Raises:
        ValueError: If it is not built.
    """
    if not trainer.built:
        raise ValueError(
            f"The model {trainer.name!r} has no weights to predict with. Received: "
            "predict on a model that is not built. Call model.build, fit or "
            "evaluate first, or load weights."
        )
