"""Optimizers for large batches that Keras does not have."""

from tfdist.optimizers.lars import Lars

__all__ = ["Lars"]
