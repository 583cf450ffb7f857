"""Placeholder of a rank under `mpirun`: reports MPI's variables, then waits."""

import base64
import json
import os
import sys
import time
import zlib

MARK = "tfdist-mpi "
_POLL_SECONDS = 0.5
# `mpirun` may mix the lines of several ranks, so that one is no use.
_REPORTS = 4


# The rank itself, which a guardian starts, connects to MPI's server in the name of its
# placeholder. `mpirun` would kill all ranks when one fails, before they can say why.
def main() -> None:
    """Report the variables, in one line each time, until `mpirun` is gone."""
    parent = os.getppid()
    prefixes = ("OMPI_", "OPAL_", "PMIX_", "PRTE_")
    found = {n: v for n, v in os.environ.items() if n.startswith(prefixes)}
    # It may be long, and a long line is not passed on in one piece.
    found.pop("OMPI_ARGV", None)
    packed = base64.b64encode(zlib.compress(json.dumps(found).encode()))
    reports = _REPORTS
    while os.getppid() == parent:
        if reports:
            reports -= 1
            sys.stdout.write(f"{MARK}{packed.decode()}\n")
            sys.stdout.flush()
        # Not at the same time as the others.
        time.sleep(_POLL_SECONDS + os.getpid() % 16 / 100)


def unpack(line: str) -> "dict[str, str]":
    """Return the variables in a line of `main`, empty for other and damaged lines."""
    if not line.startswith(MARK):
        return {}
    try:
        packed = base64.b64decode(line[len(MARK) :], validate=True)
        return json.loads(zlib.decompress(packed))
    except (ValueError, zlib.error):
        return {}


if __name__ == "__main__":
    main()
