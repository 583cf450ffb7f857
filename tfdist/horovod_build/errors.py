"""What is raised when Horovod cannot be built or used."""

COULD_NOT_START = 2


class BuildError(RuntimeError):
    """Horovod could not be built, or does not work.

    Args:
        message: What is wrong, what was found, and what to do.
        exit_code: What a command that reports it should return: 2 if something was
            missing and nothing was started, 1 if it was started and failed. Default 1.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
