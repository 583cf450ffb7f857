"""Which ports the workers of `tfdist config build` have on their hosts."""

import argparse

from tfdist.cluster.host_slots import HostSlots, number_ports

DEFAULT_PORT = 2222


def give_ports(
    hosts: tuple[HostSlots, ...], args: argparse.Namespace
) -> tuple[str, ...]:
    """Give each worker an address.

    Args:
        hosts: The hosts, with the number of workers on each.
        args: What the parser has read.

    Returns:
        "host:port" of each, host by host.

    Raises:
        OSError: If this machine has too few free ports.
        ValueError: If the ports do not reach, or cannot be picked.
    """
    if args.port is not None:
        _check_alone(args)
        return number_ports(hosts, args.port)
    ports = args.port_range
    for host in hosts:
        if ports is not None and host.slots > len(ports):
            raise ValueError(
                f"--port-range has too few ports for the workers of {host.host}. "
                f"Received: {_written(ports)}, {host.slots} workers. "
                "Widen it, or put fewer workers on the host."
            )
    first = DEFAULT_PORT if ports is None else ports.start
    if not args.pick_ports:
        return number_ports(hosts, first)
    return _picked(hosts, first, ports)


def check_no_ports(args: argparse.Namespace) -> None:
    """Refuse options of ports where the addresses have ports of their own.

    Args:
        args: What the parser has read.

    Raises:
        ValueError: If there is one.
    """
    given = {
        "--port": args.port,
        "--port-range": None if args.port_range is None else _written(args.port_range),
        "--pick-ports": "" if args.pick_ports else None,
    }
    for option, value in given.items():
        if value is not None:
            raise ValueError(
                f"{option} has no effect without -H or --hostfile, as addresses have "
                f"ports of their own. Received: {option} {value}".rstrip()
                + ". Leave it out, or give -H."
            )


def _check_alone(args: argparse.Namespace) -> None:
    """Refuse a fixed port beside a choice of ports."""
    if args.port_range is None and not args.pick_ports:
        return
    other = "--pick-ports"
    if args.port_range is not None:
        other = f"--port-range {_written(args.port_range)}"
    raise ValueError(
        "--port leaves nothing to choose. "
        f"Received: --port {args.port} and {other}. Leave one of them out."
    )


def _picked(
    hosts: tuple[HostSlots, ...], first: int, ports: range | None
) -> tuple[str, ...]:
    """Give the workers on this machine free ports, and count up those of the others."""
    # Imported here because few ask for it, and the command must start quickly.
    from tfdist.launch.machine import free_ports, is_this_machine

    # It may have several names, under which it has each port but once.
    here = {host for host in hosts if is_this_machine(host.host)}
    if not here:
        raise ValueError(
            "--pick-ports can check the ports of this machine only. "
            f"Received: {', '.join(host.host for host in hosts)}, none of which it is. "
            "Leave it out, or run the command on one of them."
        )
    count = sum(host.slots for host in here)
    # TensorFlow listens on every address of the machine.
    free = iter(sorted(free_ports(count, host="0.0.0.0", within=ports)))
    addresses: list[str] = []
    for host in hosts:
        if host in here:
            addresses += [f"{host.host}:{next(free)}" for _ in range(host.slots)]
        else:
            addresses += number_ports((host,), first)
    return tuple(addresses)


def _written(ports: range) -> str:
    """Return a range as it was given."""
    return f"{ports.start}-{ports.stop - 1}"
