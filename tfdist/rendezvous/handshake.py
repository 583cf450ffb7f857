"""Handshake of ranks with rank 0: proofs of the secret, and who is missing."""

import os
import selectors
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from tfdist.cluster.address import split_address
from tfdist.cluster.launcher import SECRET_VARIABLE
from tfdist.rendezvous.presence import RETRY_SECONDS, allow_open_files, retry
from tfdist.rendezvous.secret import is_proof, new_nonce, proof_of
from tfdist.rendezvous.wire import (
    CHUNK_BYTES,
    MAX_BYTES,
    Message,
    Reader,
    receive,
    send,
)

# Rank 0 acknowledges a caller at once; a slower listener is another program.
_ACKNOWLEDGE_SECONDS = 5.0
# A network that is cut for longer loses the ranks behind it.
_CUT_SECONDS = 15.0
# A caller may have started its clock later than rank 0.
_EXTRA_SECONDS = 10.0
_REFUSALS = {"absent": TimeoutError, "refused": RuntimeError}
# The longest message of a caller that has not proved yet to know the secret.
_PROOF_BYTES = 4096
# Callers without a proof, above one for each rank; the oldest gives way to a new one.
_UNPROVEN = 256
_LOOK_UP_SECONDS = 1.0

_Place = tuple[str, int]


class _StrangerError(ValueError):
    """An answer in the name of rank 0, without a proof of the secret."""


@dataclass(eq=False)
class _Caller:
    """A connection to rank 0 that has yet to prove that it belongs to the job."""

    connection: socket.socket
    nonce: str = field(default_factory=new_nonce)
    reader: Reader = field(default_factory=lambda: Reader(_PROOF_BYTES))
    since: float = field(default_factory=time.monotonic)
    is_proven: bool = False


@dataclass(frozen=True)
class RankName:
    """The name of a rank in errors: its number in the whole job, and its place."""

    rank: int
    place: str = ""

    def __str__(self) -> str:
        """Return "rank 3 (worker 3, node1:2222)"."""
        return f"{self.short} ({self.place})"

    @property
    def short(self) -> str:
        """The name without the place: "rank 3"."""
        return f"rank {self.rank}"


@dataclass(frozen=True)
class Meeting:
    """Connections between ranks: rank 0 has one to each other rank, these one to it."""

    rank: int
    names: Mapping[int, RankName]
    connections: Mapping[int, socket.socket]


@dataclass
class Handshake:
    """Handshake of all ranks with rank 0, whose connections stay open."""

    rank: int
    # Of all ranks on rank 0, elsewhere of rank 0 and this one.
    names: Mapping[int, RankName]
    secret: str = field(repr=False)
    seconds: float
    remedy: str
    addresses: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._present: dict[int, socket.socket] = {}
        self._unproven: dict[socket.socket, _Caller] = {}
        # Host names that are not known, with the reasons.
        self._unknown: dict[str, str] = {}

    def connect(
        self,
        listener: socket.socket | None,
        places: Sequence[_Place],
    ) -> Meeting:
        """Connect this rank; only rank 0 has a listener."""
        if listener is None:
            connections = {0: self._join(places)}
        else:
            purpose = "Rank 0 needs a connection to every rank"
            allow_open_files(len(self.names) + 2 * _UNPROVEN, purpose)
            with listener:
                connections = self._gather(listener)
        return Meeting(self.rank, self.names, connections)

    def _gather(self, listener: socket.socket) -> dict[int, socket.socket]:
        """Wait on rank 0 for all other ranks; return their connections."""
        listener.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            for left in retry(self.seconds, self._missing):
                if len(self._present) == len(self.names) - 1:
                    break
                for key, _ in selector.select(min(1.0, left)):
                    if key.data is None:
                        self._accept(listener, selector)
                    elif key.fileobj.fileno() >= 0:  # type: ignore[union-attr]
                        self._hear(key.data, selector)
                self._drop_late(selector)
        for caller in self._unproven.values():
            caller.connection.close()
        if len(self._present) < len(self.names) - 1:
            present = [str(self.names[rank]) for rank in [0, *sorted(self._present)]]
            text = (
                f"Only {len(present)} of {len(self.names)} processes have answered the "
                f"roll-call after {self.seconds:g} s. Present: {'; '.join(present)}. "
                f"Missing: {self._missing()}. {self.remedy}"
            )
            self._end(TimeoutError(text))
        for connection in self._present.values():
            send(_for_heartbeats(connection), {"kind": "welcome"})
        return self._present

    def _accept(
        self, listener: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        """Challenge a new caller."""
        if len(self._unproven) >= len(self.names) + _UNPROVEN:
            self._drop(next(iter(self._unproven.values())), selector)
        with suppress(OSError):  # It may have left.
            connection, _ = listener.accept()
            caller = self._unproven[connection] = _Caller(connection)
            selector.register(connection, selectors.EVENT_READ, caller)
            connection.settimeout(_ACKNOWLEDGE_SECONDS)
            send(connection, {"kind": "challenge", "nonce": caller.nonce})

    def _drop_late(self, selector: selectors.BaseSelector) -> None:
        """End the connections that have not proved in time that they belong here."""
        late = time.monotonic() - _ACKNOWLEDGE_SECONDS
        for caller in [each for each in self._unproven.values() if each.since < late]:
            self._drop(caller, selector)

    def _drop(self, caller: _Caller, selector: selectors.BaseSelector) -> None:
        """End the connection of a caller."""
        connection = caller.connection
        self._unproven.pop(connection, None)
        callers = self._present.items()
        self._present = {r: c for r, c in callers if c is not connection}
        selector.unregister(connection)
        connection.close()

    def _join(self, places: Sequence[_Place]) -> socket.socket:
        """Connect to rank 0 at one of its addresses, and wait until all ranks have."""
        reasons = dict.fromkeys(places, "it has not been tried")

        def state() -> str:
            texts = [f"{host}: {why}" for (host, _), why in reasons.items()]
            return "; ".join(texts if len(texts) > 1 else reasons.values())

        for left in retry(self.seconds, lambda: f"{self.names[0]}: {state()}"):
            for place in places:
                try:
                    connection, reply = self._report(place, left + _EXTRA_SECONDS)
                except (LookupError, OSError, TypeError, ValueError) as error:
                    # Without addresses, rank 0 may answer elsewhere.
                    if self.addresses and isinstance(error, _StrangerError):
                        raise RuntimeError(self._other_run()) from None
                    reasons[place] = str(error) or type(error).__name__
                    continue
                if reply["kind"] == "welcome":
                    return _for_heartbeats(connection)
                connection.close()
                raise _REFUSALS[reply["kind"]](reply["text"])
            time.sleep(min(RETRY_SECONDS, left))
        raise TimeoutError(
            f"{self.names[0]} has not answered the roll-call after {self.seconds:g} s: "
            f"{state()}. Present: {self.names[self.rank]}; of the others nothing is "
            f"known here. {self.remedy}"
        )

    def _report(self, place: _Place, seconds: float) -> tuple[socket.socket, Message]:
        """Prove both ends at an address; return the connection and the final reply."""
        connection = socket.create_connection(place, timeout=_ACKNOWLEDGE_SECONDS)
        try:
            reply = receive(connection, _ACKNOWLEDGE_SECONDS, _PROOF_BYTES)
            if reply.get("kind") != "challenge":
                raise ValueError("something else answers there")
            # Before rank 0's proof, it is told nothing and nothing of it is believed.
            nonces = new_nonce(), str(reply["nonce"])
            proof = proof_of(self.secret, "caller", *nonces)
            send(connection, {"kind": "hello", "nonce": nonces[0], "proof": proof})
            reply = receive(connection, _ACKNOWLEDGE_SECONDS, _PROOF_BYTES)
            if not is_proof(reply["proof"], self.secret, "rank 0", *nonces):
                raise _StrangerError("another run answers there")
            me = {"rank": self.rank, "addresses": list(self.addresses)}
            who = {"pid": os.getpid(), "host": socket.gethostname()}
            send(connection, {"kind": "confirm", **me, **who})
            reply = receive(connection, seconds)
            if reply.get("kind") not in ("welcome", *_REFUSALS):
                raise ValueError("something else answers there")
        except BaseException:
            connection.close()
            raise
        return connection, reply

    def _other_run(self) -> str:
        """Explain that rank 0's address does not belong to this run."""
        return (
            f"{self.names[0]} belongs to another run, or has another "
            f"{SECRET_VARIABLE}. Received: no proof of it for {self.names[self.rank]}, "
            f"process {os.getpid()} on {socket.gethostname()}. Give each run ports of "
            "its own, and all processes of a run the same secret."
        )

    def _hear(self, caller: _Caller, selector: selectors.BaseSelector) -> None:
        """Read from a caller, and end its connection if it is none of ours."""
        connection = caller.connection
        try:
            data = connection.recv(CHUNK_BYTES)
            for message in caller.reader.feed(data):
                if caller.is_proven:
                    self._admit(connection, message)
                    self._unproven.pop(connection, None)
                else:
                    self._verify(caller, message)
        except (OSError, ValueError, LookupError, TypeError):
            data = b""  # Another program, or a caller that has left.
        if not data:
            self._drop(caller, selector)

    def _verify(self, caller: _Caller, hello: Message) -> None:
        """Check the proof of a caller, and answer with that of rank 0."""
        nonces = str(hello["nonce"]), caller.nonce
        if is_proof(hello["proof"], self.secret, "caller", *nonces):
            caller.is_proven, caller.reader.max_bytes = True, MAX_BYTES
        proof = proof_of(self.secret, "rank 0", *nonces) if caller.is_proven else ""
        send(caller.connection, {"kind": "present", "proof": proof})
        if not caller.is_proven:
            raise ValueError("The caller belongs to another run, or to none.")

    def _admit(self, connection: socket.socket, hello: Message) -> None:
        """Register a rank as present, or refuse it."""
        rank = hello["rank"]
        who = f"process {hello['pid']} on {hello['host']}"
        if hello["addresses"] != list(self.addresses):
            text = (
                "The ranks have different clusters. Received: "
                f"{list(self.addresses)} on rank 0, {hello['addresses']} on rank "
                f"{rank} ({who}). Give every process the same cluster."
            )
            self._end(RuntimeError(text), connection)
        if rank == 0 or rank in self._present:
            text = (
                f"Two processes are {self.names[rank]}. Received: the second from "
                f"{who}. Give every process its own task index."
            )
            self._end(RuntimeError(text), connection)
        if rank not in self.names:
            raise LookupError(rank)
        self._present[rank] = connection

    def _end(self, error: Exception, *callers: socket.socket) -> NoReturn:
        """Raise an error here and on every rank that is present."""
        kind = "absent" if isinstance(error, TimeoutError) else "refused"
        for connection in (*self._present.values(), *callers):
            with suppress(OSError):
                send(connection, {"kind": kind, "text": str(error)})
        raise error

    def _missing(self) -> str:
        """Name the ranks that have not answered, and those with unknown hosts."""
        ranks = [r for r in self.names if r > 0 and r not in self._present]
        # Ranks that Horovod has connected have no addresses.
        places = {rank: self.addresses[rank] for rank in ranks if self.addresses}
        hosts = {rank: split_address(place)[0] for rank, place in places.items()}
        # A name server may answer late, and callers are not to wait for it.
        names = list(hosts.values())
        thread = threading.Thread(target=self._look_up, args=(names,), daemon=True)
        thread.start()
        thread.join(_LOOK_UP_SECONDS)
        missing = []
        for rank in ranks:
            name, host = str(self.names[rank]), hosts.get(rank, "")
            why = self._unknown.get(host)
            text = f"{name}: the name {host!r} is not known ({why})"
            missing.append(text if why else name)
        return "; ".join(missing)

    def _look_up(self, hosts: Sequence[str]) -> None:
        """Note the names among hosts that are not known."""
        for host in hosts:
            try:
                socket.getaddrinfo(host, None)
            except OSError as error:
                self._unknown[host] = str(error)
            else:
                self._unknown.pop(host, None)


def _for_heartbeats(connection: socket.socket) -> socket.socket:
    """Let small messages leave at once, and a cut network close the connection."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The kernel of a busy or stopped process still acknowledges heartbeats.
    milliseconds = round(1000 * _CUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return connection
