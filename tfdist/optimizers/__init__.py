"""Optimizers that Keras does not have, for large batches and large tables."""

from tfdist.optimizers.lars import Lars
from tfdist.optimizers.lazy import LazyAdam, LazySGD

__all__ = ["Lars", "LazyAdam", "LazySGD"]
