"""Start handshake: no rank starts before every rank has answered rank 0."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from tfdist.cluster.address import split_address
from tfdist.cluster.launcher import Launcher, start_timeout
from tfdist.cluster.model import Cluster
from tfdist.rendezvous.handshake import Handshake, Meeting, RankName
from tfdist.rendezvous.presence import check_own_port, listen
from tfdist.rendezvous.secret import new_nonce, warn_without_secret

TIMEOUT_SECONDS = 600.0


def call_roll(
    cluster: Cluster, *, start_timeout_seconds: float | None = None
) -> Meeting:
    """Wait for every rank, and connect it with rank 0."""
    # Rank 0 listens at its own address, which is free again for TensorFlow afterwards:
    # the connections stay open as lifelines, so no second port is needed.
    ranks = range(cluster.size) if cluster.rank == 0 else (0, cluster.rank)
    names = {rank: name_of(cluster, rank) for rank in ranks}
    check_own_port(cluster, str(names[cluster.rank]))
    zero = cluster.addresses[0]
    launcher = Launcher()
    secret = launcher.secret()
    if cluster.rank == 0:
        warn_without_secret(secret, cluster.addresses)
    handshake = Handshake(
        cluster.rank,
        names,
        secret=f"{secret}\0{cluster.run_id}",
        addresses=cluster.addresses,
        seconds=start_timeout(start_timeout_seconds),
        remedy="Check that each of the missing was started, with the same cluster and "
        f"its own task index, and that all ranks can reach rank 0 at {zero}.",
    )
    listener = None if cluster.rank > 0 else listen(cluster)
    places = [split_address(zero)]
    met = handshake.connect(listener, places)
    if cluster.rank == 0:
        launcher.note_saved(0)
    return met


@dataclass(frozen=True)
class Guest:
    """Rank that Horovod or MPI has already connected with the others."""

    rank: int  # In the whole job, even if only some of its ranks meet.
    host: str
    pid: int
    # Hosts at which rank 0 may be reached, the most likely first.
    addresses: tuple[str, ...] = ()
    # The port of rank 0 and a secret that identifies the meeting, set on rank 0 alone.
    port: int = 0
    token: str = ""


def introduce(
    rank: int, number: int, *, is_local: bool
) -> tuple[Guest, socket.socket | None]:
    """Return the address of this process; on rank 0, listen for the others of `meet`.

    `number` is the rank in the whole job.
    """
    host, pid = socket.gethostname(), os.getpid()
    if rank > 0:
        return Guest(number, host, pid), None
    door, token = open_door(is_local=is_local)
    addresses = ["127.0.0.1"] if is_local else [*_own_addresses(), host]
    port = door.getsockname()[1]
    return Guest(number, host, pid, tuple(addresses), port, token), door


def open_door(*, is_local: bool) -> tuple[socket.socket, str]:
    """Open a free port for `meet` on rank 0; return its socket and a new token."""
    if is_local:
        return socket.create_server(("127.0.0.1", 0), backlog=1024), new_nonce()
    # A host may have a name for one of the two protocols only.
    is_both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_both else socket.AF_INET
    door = socket.create_server(
        ("", 0), family=family, backlog=1024, dualstack_ipv6=is_both
    )
    return door, new_nonce()


def meet(
    rank: int,
    guests: Sequence[Guest],
    door: socket.socket | None,
    *,
    start_timeout_seconds: float,
) -> Meeting:
    """Connect ranks that know the address of rank 0; return as `call_roll` does."""
    names = [RankName(g.rank, f"process {g.pid} on {g.host}") for g in guests]
    zero = guests[0]
    handshake = Handshake(
        rank,
        dict(enumerate(names)),
        secret=zero.token,
        seconds=start_timeout_seconds,
        remedy=f"Let all hosts reach {zero.host} by TCP, on any port.",
    )
    places = [(host, zero.port) for host in zero.addresses]
    return handshake.connect(door, places)


def name_of(cluster: Cluster, rank: int) -> RankName:
    """Return the name of a rank in errors: its number, task and address."""
    return RankName(rank, f"{cluster.task_of(rank)}, {cluster.addresses[rank]}")


def _own_addresses() -> list[str]:
    """Return the addresses at which other hosts may reach this one, IPv4 first."""
    found = [
        (each.family, each.address)
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family in (socket.AF_INET, socket.AF_INET6)
        and not each.address.startswith(("127.", "::1", "fe80:"))
    ]
    return [address for _, address in sorted(found, key=lambda one: one[0])]
