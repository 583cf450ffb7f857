"""The jobs of a TF_CONFIG: whether its object "cluster" holds lists of addresses."""

import json
from dataclasses import dataclass
from typing import Any

from tfdist.cluster.finding import Finding
from tfdist.cluster.tf_config_text import as_meant, unknown_keys
from tfdist.cluster.validation import JOB_TYPES

# What Kubeflow writes in place of a cluster whose workers may come and go.
SPARSE = "sparseCluster"
_JOB_KEYS = (*JOB_TYPES, "master", SPARSE)

EXAMPLE = '{"worker": ["node1:2222", "node2:2222"]}'
ONLY_SPARSE = Finding(
    "cluster",
    "cluster is sparse: it leaves out the other workers.",
    '"sparseCluster" and no other addresses',
    "Set enableDynamicWorker to false in the TFJob, so that each process learns all.",
    "trains alone",
)


@dataclass(frozen=True)
class JobsRead:
    """What an object "cluster" says.

    Args:
        jobs: The lists of addresses by job type, without empty ones, as they were
            probably meant; nobody has looked at the addresses themselves.
        findings: The mistakes.
        is_sure: Whether the lists are all there and as long as they are meant to be.
    """

    jobs: dict[str, tuple[str, ...]]
    findings: tuple[Finding, ...]
    is_sure: bool


def read_jobs(cluster: dict[str, Any]) -> JobsRead:
    """Read the object "cluster".

    Args:
        cluster: The object.

    Returns:
        What it says.

    Example:
        >>> read_jobs({"worker": ["a:2222"], "ps": []}).jobs
        {'worker': ('a:2222',)}
    """
    findings = _wrong_jobs(cluster)
    jobs: dict[str, tuple[str, ...]] = {}
    is_sure = True
    for job, value in as_meant(cluster, _JOB_KEYS).items():
        if job != SPARSE:
            addresses, wrong = _addresses(job, value)
            findings += wrong
            is_sure = is_sure and addresses is not None
            jobs.setdefault(job_type(job), addresses or ())
    jobs = {job: addresses for job, addresses in jobs.items() if addresses}
    if not jobs and not findings:
        findings = [ONLY_SPARSE if SPARSE in cluster else _no_addresses(cluster)]
    return JobsRead(jobs, tuple(findings), is_sure)


def job_type(job: Any) -> Any:
    """Translate the older word for chief.

    Args:
        job: What stands where the type of a job belongs.

    Example:
        >>> job_type("master"), job_type("worker")
        ('chief', 'worker')
    """
    return "chief" if job == "master" else job


def _wrong_jobs(cluster: dict[str, Any]) -> list[Finding]:
    """Return the mistakes in the names of the jobs."""
    complaint = "cluster has an unknown job"
    findings = [
        *unknown_keys(cluster, _JOB_KEYS, complaint, place="cluster", effect="refused")
    ]
    if "chief" in cluster and "master" in cluster:
        findings.append(
            Finding(
                "cluster",
                "cluster has both a chief and a master, two words for one job.",
                ", ".join(cluster),
                "Leave one of them out.",
                "refused",
            )
        )
    return findings


def _no_addresses(cluster: dict[str, Any]) -> Finding:
    """Say that a cluster has no jobs, or only empty ones."""
    return Finding(
        "cluster",
        "cluster has no addresses at all.",
        json.dumps(cluster),
        f"Write it as {EXAMPLE}, or unset TF_CONFIG to train alone.",
        "trains alone",
    )


def _addresses(job: str, value: Any) -> tuple[tuple[str, ...] | None, list[Finding]]:
    """Return the list of one job as it is meant, None if nobody can say, and mistakes.

    `Cluster` looks at the addresses themselves.
    """
    place = f"cluster.{job}"
    if isinstance(value, str):
        meant = value.split(",")
        fix = f"Write it as {json.dumps(meant)}."
        problem = f"{place} must be a list, also for a single address."
        finding = Finding(place, problem, json.dumps(value), fix, "refused")
        return tuple(meant), [finding, *_several_chiefs(job, meant)]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        problem = f'{place} must be a list of "host:port" strings.'
        fix = 'Write it as ["node1:2222", "node2:2222"].'
        return None, [Finding(place, problem, json.dumps(value), fix, "refused")]
    if job == "worker" and not value:
        problem = f"{place} is an empty list."
        fix = "Add the workers, or leave the job out if the chief alone trains."
        return None, [Finding(place, problem, "[]", fix, "nobody trains")]
    return tuple(value), _several_chiefs(job, value)


def _several_chiefs(job: str, addresses: list[str]) -> list[Finding]:
    """Return the mistake of a cluster with more than one chief."""
    if job_type(job) != "chief" or len(addresses) < 2:
        return []
    place = f"cluster.{job}"
    problem = f"{place} has more than one address, but a cluster has one chief."
    received = json.dumps(addresses)
    return [Finding(place, problem, received, "Make the others workers.", "refused")]
