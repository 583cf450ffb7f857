"""Secret of a job, and the proof that a process at the other end knows it."""

import hmac
import logging
import os
from collections.abc import Iterable

from tfdist.cluster.address import is_loopback, split_address
from tfdist.cluster.launcher import SECRET_FILE_VARIABLE, SECRET_VARIABLE

_log = logging.getLogger(__name__)

_WITHOUT_SECRET = (
    f"The ranks know each other by their addresses only, as {SECRET_VARIABLE} is not "
    "set: any program in this network can pass for one of them. Give all processes of "
    f"the job the same {SECRET_VARIABLE}, or {SECRET_FILE_VARIABLE}."
)


def new_nonce() -> str:
    """Return a random text that proofs are made from, and that is also a secret."""
    return os.urandom(16).hex()


def warn_without_secret(secret: str, addresses: Iterable[str]) -> None:
    """Warn if any program in the network can pass for a rank."""
    hosts = {split_address(address)[0] for address in addresses}
    if not secret and not all(map(is_loopback, hosts)):
        _log.warning(_WITHOUT_SECRET)


def proof_of(secret: str, side: str, *nonces: str) -> str:
    """Return the proof that one side of a connection knows the secret."""
    # The sides differ, so that a proof cannot be sent back.
    text = "\0".join((side, *nonces))
    return hmac.digest(secret.encode(), text.encode(), "sha256").hex()


def is_proof(given: object, secret: str, side: str, *nonces: str) -> bool:
    """Return whether a proof is that of a side that knows the secret."""
    wanted = proof_of(secret, side, *nonces)
    return hmac.compare_digest(wanted.encode(), str(given).encode())
