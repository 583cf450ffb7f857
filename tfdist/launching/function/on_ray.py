"""A function in processes that Ray places in its cluster."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfdist.launching.function.call import Call, RankEnd
from tfdist.launching.function.worker import Rendezvous, address_on, run_rank

# After a failure the other ranks may run this much longer to report theirs.
_SETTLE_SECONDS = 2.0


def run_on_ray(call: Call, processes: int, resources: Mapping[str, float]) -> RankEnd:
    """Run the processes, and return the end of the one that counts."""
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "on='ray' needs Ray, which is not installed here. "
            "Run: pip install 'tfdist[ray]'"
        ) from error
    places = range(processes)
    with _placed({"CPU": 1.0, **resources}, processes) as start:
        addresses = ray.get([start(place, ray_address) for place in places])
        shared = ray.put((call, Rendezvous(), addresses))
        waiting = [start(place, _run, shared, addresses[place]) for place in places]
        ends: list[RankEnd] = []
        while waiting and not any(end.problem for end in ends):
            done, waiting = ray.wait(waiting)
            ends += ray.get(done)
        if waiting:
            count = len(waiting)
            done, _ = ray.wait(waiting, num_returns=count, timeout=_SETTLE_SECONDS)
            ends += ray.get(done)
    return RankEnd.first(ends)


@contextlib.contextmanager
def _placed(needs: Mapping[str, float], count: int) -> Iterator[Callable[..., Any]]:
    """Reserve resources, yield what starts tasks there, and end what still runs."""
    import ray
    from ray.util import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([dict(needs)] * count)
    others = {name: needs[name] for name in needs.keys() - {"CPU", "GPU"}}
    started = []

    def start(place: int, function: Callable[..., Any], *arguments: Any) -> Any:
        task = ray.remote(function).options(
            num_cpus=needs["CPU"],
            num_gpus=needs.get("GPU", 0),
            resources=others,
            # A second start of one rank would have no peers.
            max_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, place),
        )
        started.append(task.remote(*arguments))
        return started[-1]

    try:
        yield start
    finally:
        remove_placement_group(group)
        for task in started:
            # Ray says of a task that it has died with its place.
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(task)


def ray_address() -> str:
    """Return a free address of the node of this worker."""
    import ray

    return address_on(ray.util.get_node_ip_address())


def ray_cpus() -> int:
    """Return how many CPUs Ray has reserved for this worker."""
    import ray

    reserved = ray.get_runtime_context().get_assigned_resources()
    return int(reserved.get("CPU", 1))


def _run(shared: tuple[Call, Rendezvous, list[str]], own: str) -> RankEnd:
    """Run a rank in a worker of Ray."""
    call, rendezvous, addresses = shared
    return run_rank(call, rendezvous, addresses, own, ray_cpus())
