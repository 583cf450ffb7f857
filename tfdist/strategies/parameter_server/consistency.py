"""When a step may begin, and when what it left is applied: arithmetic alone.

References:
    Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server", 2013.
    Dean et al., "Large Scale Distributed Deep Networks", 2012.
"""

from dataclasses import dataclass, field

CONSISTENCIES = ("async", "bounded", "sync")


@dataclass
class Order:
    """The order of the updates of one training, by the numbers of their steps.

    Args:
        max_staleness: How many updates a gradient may miss, counted in updates; None
            for any number, which applies what arrives as it arrives.
    """

    max_staleness: int | None
    begun: int = 0
    # Those of all that were begun whose turn is over, also if they came to nothing.
    applied: int = 0
    # How many came to nothing: there was no batch for them.
    void: int = 0
    _early: dict[int, int] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """How many steps there are, as far as is known."""
        return self.begun - self.void

    def may_begin(self, steps: int) -> bool:
        """Say whether a worker may be given the next steps.

        The last of them is applied after all that were begun before. If that are more
        updates than it may miss, and it read the weights now, it would be too stale.

        Args:
            steps: How many steps the worker makes in one go.
        """
        if self.max_staleness is None:
            return True
        return self.begun + steps - 1 - self.applied <= self.max_staleness

    def begin(self, steps: int) -> int:
        """Note that a worker is given the next steps.

        Args:
            steps: How many.

        Returns:
            The number of the first.
        """
        first = self.begun
        self.begun += steps
        return first

    def number_apart(self, step: int) -> int:
        """Return what tells a step from all that may be under way with it.

        Args:
            step: Its number.

        Returns:
            0 for every step if one is made after the other.
        """
        return 0 if self.max_staleness == 0 else step

    def arrived(self, first: int, steps: int, made: int | None = None) -> list[int]:
        """Note that steps have arrived, and say which are to be applied now.

        Args:
            first: The number of the first of them.
            steps: How many they are.
            made: How many of them did not come to nothing. Default None: all.

        Returns:
            The numbers of the first of all that are to be applied, in this order.
        """
        self.void += 0 if made is None else steps - made
        if self.max_staleness is None:
            self.applied += steps
            return [first]
        self._early[first] = steps
        ready = []
        while self.applied in self._early:
            ready.append(self.applied)
            self.applied += self._early.pop(self.applied)
        return ready


def check_consistency(consistency: str, max_staleness: int | None) -> None:
    """Refuse a consistency that is none, or that lacks what it needs.

    Args:
        consistency: One of `CONSISTENCIES`.
        max_staleness: For "bounded" alone: at least 0.

    Raises:
        ValueError: If it is not so.
    """
    if consistency not in CONSISTENCIES:
        raise ValueError(
            f"consistency must be one of {', '.join(CONSISTENCIES)}. Received: "
            f"consistency={consistency!r}. Use 'async' for the highest speed, 'sync' "
            "for the weights that one process gives."
        )
    if consistency != "bounded" and max_staleness is not None:
        raise ValueError(
            "max_staleness is for consistency='bounded'. Received: max_staleness="
            f"{max_staleness} with consistency={consistency!r}. Leave it out, or use "
            "consistency='bounded'."
        )
    if consistency == "bounded" and (
        not isinstance(max_staleness, int)
        or isinstance(max_staleness, bool)
        or max_staleness < 0
    ):
        raise ValueError(
            "consistency='bounded' needs max_staleness, a whole number of updates from "
            f"0. Received: max_staleness={max_staleness!r}. Give how many updates a "
            "gradient may miss; 0 makes one step after the other."
        )


def check_backup_workers(backup_workers: int, consistency: str, workers: int) -> None:
    """Refuse backup workers where nobody waits for others, or nobody is left to work.

    Args:
        backup_workers: How many workers a step does not wait for.
        consistency: One of `CONSISTENCIES`.
        workers: How many workers there are.

    Raises:
        ValueError: If it is not so.
    """
    if (
        not isinstance(backup_workers, int)
        or isinstance(backup_workers, bool)
        or not 0 <= backup_workers < workers
    ):
        raise ValueError(
            "backup_workers must be a whole number from 0, and less than there are "
            f"workers. Received: backup_workers={backup_workers!r} with {workers} "
            "workers. Give how many slow workers a step should not wait for, or start "
            "more workers."
        )
    if backup_workers and consistency != "sync":
        raise ValueError(
            "backup_workers is for consistency='sync'. Received: backup_workers="
            f"{backup_workers} with consistency={consistency!r}, where no worker waits "
            "for another. Leave it out, or use consistency='sync'."
        )
