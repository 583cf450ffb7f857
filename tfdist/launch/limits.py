"""What ends a job, besides its own end."""

from dataclasses import dataclass

DEFAULT_RESTARTS = 3


@dataclass(frozen=True)
class Limits:
    """What ends a job, besides its own end.

    Args:
        timeout_seconds: How long all of it may take, restarts included. Default None:
            for ever.
        grace_seconds: How long processes may take to end when asked to. Default 5.
        worker_restarts: How many times workers of parameter servers are started again
            within one start of the job. Default 3.
    """

    timeout_seconds: float | None = None
    grace_seconds: float = 5.0
    worker_restarts: int = DEFAULT_RESTARTS

    def check(self) -> None:
        """Refuse limits that no run can keep.

        Raises:
            ValueError: If the timeout is not positive, or `worker_restarts` negative.
        """
        if self.timeout_seconds is not None and not self.timeout_seconds > 0:
            raise ValueError(
                "timeout_seconds must be positive. Received: "
                f"timeout_seconds={self.timeout_seconds}. Leave it out for no limit."
            )
        if self.worker_restarts < 0:
            raise ValueError(
                "restarts must not be negative. Received: "
                f"restarts={self.worker_restarts}. Use 0 to start no worker again."
            )
