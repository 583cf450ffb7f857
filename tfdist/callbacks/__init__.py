"""What to do during `fit`: callbacks for training on several processes."""

from tfdist.callbacks.throughput import Throughput

__all__ = ["Throughput"]
