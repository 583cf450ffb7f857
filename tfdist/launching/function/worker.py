"""A rank in a worker of another engine, which tells it where the others are."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from tfdist.cluster.launcher import SECRET_VARIABLE
from tfdist.launching.function import child
from tfdist.launching.function.call import Call, RankEnd
from tfdist.launching.job import Job, ProcessSpec
from tfdist.launching.machine import Machine, available_cores, free_ports
from tfdist.launching.plan import new_run_id, plan
from tfdist.launching.runner import run
from tfdist.rendezvous.secret import new_nonce

# With it, tf.keras is Keras 2; Ray sets it for its own TensorFlow backend.
_LEGACY_VARIABLE = "TF_USE_LEGACY_KERAS"


@dataclass(frozen=True)
class Rendezvous:
    """What all ranks of a job share; the engine carries it to its workers."""

    secret: str = field(default_factory=new_nonce, repr=False)
    run_id: str = field(default_factory=new_run_id)

    def spec(self, addresses: Sequence[str], rank: int, threads: int) -> ProcessSpec:
        """Plan a rank that runs here; the addresses are ordered by rank."""
        job = Job(
            (),
            size=len(addresses),
            bind_to="none",
            threads_per_process=max(1, threads),
            collective="tensorflow",
        )
        places = [address.rpartition(":") for address in addresses]
        machines = [
            Machine(host, tuple(int(port) for *_, port in own), available_cores())
            for host, own in groupby(places, key=lambda place: place[0])
        ]
        planned = plan(job, machines, run_id=self.run_id, environ=os.environ)[rank]
        env = {**planned.env, SECRET_VARIABLE: self.secret}
        unset = (*planned.unset, _LEGACY_VARIABLE)
        return replace(planned, env=env, unset=unset, host=None)


def address_on(host: str) -> str:
    """Return a free address of this host."""
    return f"{host}:{free_ports(1, host='')[0]}"


def by_host(addresses: Sequence[str]) -> list[str]:
    """Order the addresses of ranks by host."""
    hosts = [address.rpartition(":")[0] for address in addresses]
    places = range(len(addresses))
    return [addresses[n] for n in sorted(places, key=lambda n: hosts.index(hosts[n]))]


def run_rank(
    call: Call, rendezvous: Rendezvous, addresses: Sequence[str], own: str, threads: int
) -> RankEnd:
    """Call the function in a new process, which ends with this one at the latest."""
    # A worker of an engine may have used TensorFlow before.
    addresses = by_host(addresses)
    rank = addresses.index(own)
    with tempfile.TemporaryDirectory(prefix="tfdist-") as name:
        folder = Path(name)
        child.write_job(folder, call.pickled, sources=call.sources)
        spec = rendezvous.spec(addresses, rank, threads)
        result = run([replace(spec, argv=child.command(folder))])
        end = RankEnd.of(result, folder, len(addresses))
    # The engine need not carry the values of the other ranks.
    return end if end.problem or rank == 0 else replace(end, content=None)


def become_rank(
    rendezvous: Rendezvous, addresses: Sequence[str], rank: int, threads: int
) -> None:
    """Make this process a rank, before it uses TensorFlow."""
    spec = rendezvous.spec(addresses, rank, threads)
    for name in spec.unset:
        os.environ.pop(name, None)
    os.environ.update(spec.env)
