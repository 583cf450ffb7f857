"""Whether a host is the machine that this process runs on."""

import socket

from tfdist.cluster.address import is_loopback, look_up, split_address


def is_this_machine(host: str) -> bool:
    """Say whether a host is this machine.

    It is if all of its numbers belong to an interface of this machine; a name that
    leads nowhere is another host's, as far as anybody here can tell.

    Args:
        host: A name or a number, IPv6 in brackets.

    Example:
        >>> is_this_machine("localhost"), is_this_machine("no-such-host.invalid")
        (True, False)
    """
    name, _ = split_address(f"{host}:1")
    if is_loopback(name):
        return True
    try:
        numbers = look_up(name)
    except OSError:
        return False
    return bool(numbers) and all(_is_ours(number) for number in numbers)


def _is_ours(number: str) -> bool:
    """Try to bind a number, which nobody can who does not have it."""
    family = socket.AF_INET6 if ":" in number else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((number, 0))
    except OSError:
        return False
    return True
