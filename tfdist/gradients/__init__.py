"""Preparation, compression and reduction of gradients."""

from tfdist.gradients.buckets import (
    BUCKET_BYTES,
    Groups,
    check_bucket_bytes,
    plan_buckets,
)
from tfdist.gradients.compression import POWERSGD_RANKS, check_compression
from tfdist.gradients.horovod import HorovodReducer, check_horovod_options
from tfdist.gradients.reducer import GradientReducer, weigh
from tfdist.gradients.sparse import with_sums_dense
from tfdist.gradients.tree import TreeReducer, sum_parts

__all__ = [
    "BUCKET_BYTES",
    "GradientReducer",
    "Groups",
    "HorovodReducer",
    "POWERSGD_RANKS",
    "TreeReducer",
    "check_bucket_bytes",
    "check_compression",
    "check_horovod_options",
    "plan_buckets",
    "sum_parts",
    "weigh",
    "with_sums_dense",
]
