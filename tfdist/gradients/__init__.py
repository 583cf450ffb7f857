"""What happens to gradients on the way from one rank's backward pass to the update."""

from tfdist.gradients.bucketing import check_bucket_bytes, plan_buckets
from tfdist.gradients.reducer import GradientReducer, weigh

__all__ = ["GradientReducer", "check_bucket_bytes", "plan_buckets", "weigh"]
