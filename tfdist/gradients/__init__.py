"""What happens to gradients on the way from one rank's backward pass to the update."""

from tfdist.gradients.bucketing import check_bucket_bytes, plan_buckets
from tfdist.gradients.compression import check_compression
from tfdist.gradients.reducer import GradientReducer, weigh
from tfdist.gradients.sparse import with_sums_dense

__all__ = [
    "GradientReducer",
    "check_bucket_bytes",
    "check_compression",
    "plan_buckets",
    "weigh",
    "with_sums_dense",
]
