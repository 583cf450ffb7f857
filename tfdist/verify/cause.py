"""What a likely cause is, and the one that may lie under any other."""

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.verify.recording import Recording


@dataclass(frozen=True)
class Cause:
    """Why processes may train otherwise than one, and what to do.

    Args:
        name: A short name.
        evidence: What was seen.
        fix: What to change in the script.
    """

    name: str
    evidence: str
    fix: str


def blame_seeds(many: Sequence[Recording], other: Cause) -> Cause:
    """Blame the seeds if they differ by rank.

    Args:
        many: What several processes have seen, by rank.
        other: The cause if the seeds are the same; its evidence is told in any case.

    Returns:
        One of the two.
    """
    for generator, states in zip(
        ("tf.random", "Python's random", "np.random"),
        zip(*(recording.seeds for recording in many), strict=False),
        strict=False,
    ):
        if len(set(states)) > 1:
            shown = (
                f" (by rank: {', '.join(states)})" if generator == "tf.random" else ""
            )
            return Cause(
                "a seed that differs by rank",
                f"{other.evidence} The ranks began to train with different seeds of "
                f"{generator}{shown}.",
                "Give keras.utils.set_random_seed the same number on every rank: the "
                "strategy lets the ranks draw differently where they must.",
            )
    return other
