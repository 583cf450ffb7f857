"""YAML from plain dictionaries and lists."""

from collections.abc import Iterable
from typing import Any


def to_yaml(documents: Iterable[dict[str, Any]]) -> str:
    """Write documents as YAML, with keys in the order in which they are there.

    Args:
        documents: Dictionaries of dictionaries, lists, strings and numbers.

    Returns:
        The text, documents parted by a line "---".

    Example:
        >>> print(to_yaml([{"kind": "Job", "port": "2222"}]), end="")
        kind: Job
        port: '2222'
    """
    # Imported here because every `tfdist` command would pay for it.
    import yaml

    text: str = yaml.safe_dump_all(
        documents, sort_keys=False, allow_unicode=True, width=10_000
    )
    return text
