"""The description of a difference, its likely cause, and the remedy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.first_step.comparison import Difference


@dataclass(frozen=True)
class Cause:
    """Likely cause of a difference, its evidence, and the fix in the script."""

    name: str
    evidence: str
    fix: str

    def as_warning(self) -> str:
        """Return it in three parts."""
        return f"{self.evidence} Received: {self.name}. {self.fix}"


# A name and a fix.
BETWEEN_ROWS = (
    "something computed over all rows of a batch, or from gradients before they are "
    "summed over the ranks",
    "A mean over rows is the same however the rows are shared out; a sum, a ratio, a "
    "maximum or pairs of rows are not. Let the optimizer clip: "
    "keras.optimizers.Adam(clipnorm=..., global_clipnorm=... or clipvalue=...).",
)
# Names and fixes by kind; of a gradient, by how many times it is that of one process.
_CAUSES: dict[Any, tuple[str, str]] = {
    "squared gradient": (
        "a table that all ranks look up alike",
        "Give the strategy sparse_as_dense=True.",
    ),
    "new value": (
        "state of a layer that is not a mean over rows",
        "Give a queue the rows of all ranks: "
        "tf.distribute.get_replica_context().all_gather(rows, axis=0). Keep a count in "
        "a metric.",
    ),
    "result": (
        "a metric that is not a sum over rows",
        "Add up sums over rows in the metric, such as a total and the number of rows, "
        "or use keras.metrics.Mean; give keras.metrics.Sum a count as an integer. A "
        "maximum, or a mean added once a step, cannot be added up over ranks: compute "
        "it from what predict returns.",
    ),
    0.5: (
        "0.5 times on two ranks: the loss is a sum over rows, not a mean",
        "Return one loss for each row, or their mean, never their sum, and do not "
        "divide by the number of processes: the strategy weighs the ranks.",
    ),
}


def explained(found: Sequence[Difference], *, is_even: bool) -> Cause:
    """Describe the largest difference, its likely cause, and the remedy."""
    first = found[0]
    factor = None if first.factor is None else round(first.factor, 1)
    amount = f"differs by {first.amount:.2g} of its norm"
    if first.factor is not None:
        amount = f"is {first.factor:.3g} times that of one process"
    others = len({difference.name for difference in found}) - 1
    more = f", and {others} more differ" if others else ""
    where = "" if is_even else " where ranks have unequal numbers of rows"
    name, fix = _CAUSES.get(first.kind) or _CAUSES.get(factor, BETWEEN_ROWS)
    evidence = (
        f"The first step differs from that of one process{where}: the {first.kind} "
        f"of {first.name!r} {amount}{more}."
    )
    return Cause(name, evidence, fix)
