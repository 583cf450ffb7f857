"""A rank on another host: what its thread here holds of it."""

import socket
import threading
from dataclasses import dataclass, field

from tfdist.launch.spec import ProcessSpec


@dataclass(eq=False)
class RemoteRank:
    """A rank as its host's thread sees it: the other end of everything."""

    spec: ProcessSpec
    control: socket.socket
    streams: tuple[int, int]
    is_over: threading.Event = field(default_factory=threading.Event)
