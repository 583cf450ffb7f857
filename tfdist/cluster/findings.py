"""Everything wrong and doubtful in a TF_CONFIG, at once."""

from tfdist.cluster.cluster_warnings import cluster_warnings
from tfdist.cluster.finding import Finding
from tfdist.cluster.name_lookup import LookUp, lookup_warnings
from tfdist.cluster.tf_config_rules import read


def findings(text: str, *, look_up: LookUp | None = None) -> tuple[Finding, ...]:
    """Return everything wrong and doubtful in a TF_CONFIG.

    There is an error among them if and only if `tf_config.loads` raises; it raises the
    first. Warnings that need the whole cluster wait until there is no error any more.

    Args:
        text: The value of the variable.
        look_up: What finds the addresses of a host name, such as
            `name_lookup.look_up`. Default None: no name is looked up, and the result
            depends on the text alone.

    Returns:
        The errors, then the warnings.

    Example:
        >>> for finding in findings('{"cluster": {"worker": ["a", "b:0"]}}'):
        ...     print(finding.place, "-", finding.problem)
        task - has no "task".
        cluster.worker[0] - cluster.worker[0] has no port.
        cluster.worker[1] - cluster.worker[1] must end in a port from 1 to 65535.
    """
    reading = read(text)
    found = reading.mistakes
    if not found:
        found = tuple(cluster_warnings(reading.jobs))
    if look_up is not None:
        found += tuple(lookup_warnings(reading.jobs, look_up))
    return found
