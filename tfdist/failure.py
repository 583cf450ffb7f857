"""The error of work that has begun, and could not be finished."""


class Failure(RuntimeError):
    """An error of a command's work, with the exit code of the command."""

    exit_code = 2

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        if exit_code is not None:
            self.exit_code = exit_code
