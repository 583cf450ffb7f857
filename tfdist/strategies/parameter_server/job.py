"""The chief's view of a job: its processes, consistency, counters and lost servers."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.cluster.model import Cluster
from tfdist.compat.patching import holding
from tfdist.strategies.parameter_server.dispatcher import Dispatcher, Heartbeat

CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"
SERVER = "/job:ps/replica:0/task:{}/device:CPU:0"
# The last bin of the staleness histogram.
LONGEST_STALENESS = 1024

_SERVER = re.compile(r"/job:ps/replica:0/task:(\d+)")


@dataclass(eq=False)
class ServerJob:
    """The processes of a job, its consistency, and the counters of its updates.

    `run` calls a function in the replica of the strategy. Everything that belongs to no
    weight is on `server_of_state`.
    """

    cluster: Cluster
    consistency: str
    max_staleness: int | None
    backup_workers: int
    run: Callable[..., Any]
    heartbeat: Heartbeat
    coordinator: Any = None
    chief: str = CHIEF
    server_of_state: str = SERVER.format(0)

    def __post_init__(self) -> None:
        # The `rows` of the step that is being traced, see `PureStep.compute`.
        self.rows: tf.Tensor | None = None
        with tf.device(self.server_of_state):
            self.version = tf.Variable(0, dtype=tf.int64, trainable=False)
            counts = tf.zeros([LONGEST_STALENESS + 1], tf.int64)
            self.staleness = tf.Variable(counts, trainable=False)

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self.cluster.workers)

    @property
    def is_sync(self) -> bool:
        """True if each batch is split among the workers."""
        return self.consistency == "sync"

    def dispatcher(self, spare_workers: int = 0) -> Dispatcher:
        """Return a new queue of work for the workers."""
        return Dispatcher(self.coordinator, self.heartbeat, spare_workers)

    def computing(self, rows: tf.Tensor) -> AbstractContextManager[None]:
        """Mark the trace of a step, for `rows` see `PureStep.compute`."""
        return holding(self, "rows", rows)

    @contextmanager
    def naming_lost_servers(self, abandon: Callable[[], None]) -> Iterator[None]:
        """Call `abandon` on any error; raise `ConnectionError` if a server is lost."""
        try:
            yield
        except StopIteration:
            raise
        except BaseException as error:
            abandon()
            name = self._lost_server(error)
            if name is None:
                raise
            raise ConnectionError(
                f"{name} is lost, and the variables that it held. Received: "
                f"{type(error).__name__} from TensorFlow. Start the job again; "
                "keras.callbacks.BackupAndRestore continues from the last backup."
            ) from error

    def _lost_server(self, error: BaseException) -> str | None:
        """Return the name and address of a server whose loss caused an error."""
        if not isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError):
            return None
        text, servers = str(error), self.cluster.ps
        found = _SERVER.search(text)
        named = [i for i, address in enumerate(servers) if address in text]
        index = int(found.group(1)) if found else next(iter(named), None)
        return None if index is None else f"ps {index} ({servers[index]})"
