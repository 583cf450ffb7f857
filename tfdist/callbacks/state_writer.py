"""Writing states beside the training."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tfdist.callbacks.state_files import StateFiles


class StateWriter:
    """Writes one state at a time, in a thread of its own.

    The training waits only if the state before is not on disk yet.

    Args:
        files: Where states are kept.
    """

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tfdist-state")
        self._last: Future[None] | None = None

    def write(self, pack: Callable[[], bytes]) -> None:
        """Begin to write a state, when the one before is on disk.

        Args:
            pack: Returns the content; it is called in the thread.

        Raises:
            OSError: If the one before could not be written.
        """
        self.wait()
        self._last = self._thread.submit(lambda: self._files.write(pack()))

    def wait(self) -> None:
        """Wait for the last state.

        Raises:
            OSError: If it could not be written.
        """
        last, self._last = self._last, None
        try:
            if last is not None:
                last.result()
        except OSError as error:
            raise OSError(
                "BackupAndRestore could not write the state of the training. Received: "
                f"{error}. The state before it is kept. Make room, or choose another "
                "backup_dir, and start again."
            ) from error

    def close(self) -> None:
        """Let the last state be written, and end the thread."""
        self._thread.shutdown()
