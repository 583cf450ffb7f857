"""What is wrong in the description of a cluster, and what comes of it."""

from collections.abc import Iterable
from dataclasses import dataclass

ERROR = "error"
WARNING = "warning"

# What comes of a mistake that nobody sees, by the name that programs get.
EFFECTS = {
    "hang": "Processes would wait for ever for one that never comes.",
    "trains alone": "Each process would train alone, without a word.",
    "wrong rank": "Processes would not know their places, or take each other's.",
    "not reachable": "The others could not connect to this process, and would wait.",
    "nobody trains": "There would be nobody who trains.",
    "not readable": "No process could read it, and each would end at once.",
    "refused": "TensorFlow refuses it when the strategy is made.",
    "port taken": "The kernel may have given the port to a connection when the process "
    "starts, which then fails now and then.",
    "not used": "Nobody would read it, so that what it says would not hold.",
    "left out": "It would have no part in the training, and the others may wait for it "
    "when they connect.",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or doubtful, in the description of a cluster.

    Args:
        place: Where, as a path: "cluster.worker[1]"; "TF_CONFIG" for all of the text.
        problem: What is wrong, as a sentence.
        received: What stands there instead, as the words after "Received: ".
        fix: What to do, as sentences.
        effect: What comes of it: one of `EFFECTS`.
        severity: "error" if no process may start with it, or "warning". Default
            "error".

    Example:
        >>> finding = Finding(
        ...     "task.index", "task.index is 1.", "index=1", "Use 0.", "wrong rank"
        ... )
        >>> finding.message
        'task.index is 1. Received: index=1. Use 0.'
    """

    place: str
    problem: str
    received: str
    fix: str
    effect: str
    severity: str = ERROR

    @property
    def message(self) -> str:
        """The three parts of an error: what is wrong, what was received, what to do."""
        # What takes several lines begins with one of its own.
        if self.received.startswith("\n"):
            return f"{self.problem} Received:{self.received}\n{self.fix}"
        return f"{self.problem} Received: {self.received}. {self.fix}"

    @property
    def why(self) -> str:
        """What comes of it, as a sentence."""
        return EFFECTS[self.effect]


def refuse_first(findings: Iterable[Finding], prefix: str = "") -> None:
    """Refuse what has a mistake, with the first that there is.

    Args:
        findings: Mistakes.
        prefix: What the error begins with. Default nothing.

    Raises:
        ValueError: If there is one.
    """
    for finding in findings:
        raise ValueError(f"{prefix}{finding.message}")
