"""TF_CONFIG as text and keys: what can be wrong before it means anything."""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

from tfdist.cluster.finding import Finding

# How much of a line an error shows, and how much of that stands before the mistake.
_EXCERPT_CHARACTERS = 72
_CHARACTERS_BEFORE = 40
# How deep objects may stand in objects: two are needed, schedulers add a few.
_DEPTH = 50
# How many keys an error lists, and of how many unknown ones it is said what they mean:
# a text that is no TF_CONFIG at all may have thousands.
_MOST_KEYS = 50


def parse(text: str) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Return the JSON object that the text holds, and everything wrong with the text.

    Args:
        text: The value of the variable.

    Returns:
        The object, empty if there is none; the addresses of a job that is there twice
        are joined. And the mistakes, of which none means that the object is as written.

    Example:
        >>> parse('{"task": {}}')
        ({'task': {}}, ())
    """
    findings: list[Finding] = []

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        findings.extend(_repeats([name for name, _ in pairs]))
        return _joined(pairs)

    try:
        config = json.loads(text, object_pairs_hook=make_object)
    except json.JSONDecodeError as error:
        finding = _not_json(error) if text.strip() else _empty(text)
        return {}, (*findings, finding)
    # Thousands of brackets, and thousands of digits: Python has its own words for them.
    except RecursionError:
        return {}, (*findings, _unreadable("brackets in brackets, without end"))
    except ValueError:
        return {}, (*findings, _unreadable("a number with thousands of digits"))
    if _is_deep(config):
        return {}, (*findings, _unreadable(f"objects in objects, over {_DEPTH} deep"))
    if not isinstance(config, dict):
        return {}, (*findings, _no_object(config))
    return config, tuple(findings)


def unknown_keys(
    found: dict[str, Any],
    known: tuple[str, ...],
    complaint: str,
    *,
    place: str,
    effect: str,
) -> Iterator[Finding]:
    """Yield the keys that nobody would read, with guesses which ones were meant.

    Args:
        found: An object of the text.
        known: The keys that it may have.
        complaint: How a finding begins, up to the unknown key.
        place: Where the object stands.
        effect: What comes of such a key.
    """
    listed = _listed(found)
    for key in _unknown(found, known):
        near = nearest(key, known)
        advice = "Leave it out, or put it into the object where it belongs."
        if near:
            advice = f'Did you mean "{near}"?'
        yield Finding(
            place,
            f'{complaint} "{key}".',
            listed,
            f"{advice} Known are: {', '.join(known)}.",
            effect,
        )


def nearest(key: str, known: tuple[str, ...]) -> str:
    """Return the known key that another may have been meant for, "" if none is near.

    Args:
        key: A key that is not known.
        known: Those that are.

    Example:
        >>> nearest("Clusters", ("cluster", "task"))
        'cluster'
    """
    # Imported here because only a mistake needs it.
    import difflib

    return next(iter(difflib.get_close_matches(key.lower(), known, n=1)), "")


def as_meant(found: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """Return an object with the keys that were probably meant.

    Args:
        found: An object of the text.
        known: The keys that it may have.

    Returns:
        What stands under known keys, or under some that are near; no other.

    Example:
        >>> as_meant({"clusters": {}, "x": 0}, ("cluster", "task"))
        {'cluster': {}}
    """
    meant = {key: value for key, value in found.items() if key in known}
    for key in _unknown(found, known):
        near = nearest(key, known)
        if near:
            meant.setdefault(near, found[key])
    return meant


def _unknown(found: dict[str, Any], known: tuple[str, ...]) -> list[str]:
    """Return the keys that are not known, or as many as anybody reads about."""
    return list(islice((key for key in found if key not in known), _MOST_KEYS))


def _listed(keys: Collection[str]) -> str:
    """Return keys in a row, without those that are too many."""
    more = len(keys) - _MOST_KEYS
    rest = [f"... ({more} more)"] if more > 0 else []
    return ", ".join([*islice(keys, _MOST_KEYS), *rest])


def _empty(text: str) -> Finding:
    """Say that there is nothing."""
    return Finding(
        "TF_CONFIG",
        "is empty.",
        repr(text),
        "Unset it to train alone, or let it describe the cluster.",
        "trains alone",
    )


def _not_json(error: json.JSONDecodeError) -> Finding:
    """Point at the place where the text stops being JSON."""
    # A tab counts as one column, so it may take up only one above the caret.
    line = error.doc.split("\n")[error.lineno - 1].replace("\t", " ")
    column = error.colno - 1
    start = max(0, column - _CHARACTERS_BEFORE)
    excerpt = line[start : start + _EXCERPT_CHARACTERS]
    place = f"line {error.lineno}, column {error.colno}"
    return Finding(
        place,
        f"is not valid JSON at {place}: {error.msg}.",
        f"\n  {excerpt}\n  {' ' * (column - start)}^",
        "Write it with json.dumps(): names in double quotes, no comma after the last.",
        "not readable",
    )


def _unreadable(what: str) -> Finding:
    """Say that the text is JSON of a size that nobody reads."""
    return Finding(
        "TF_CONFIG",
        "cannot be read as JSON.",
        what,
        'Write it as {"cluster": {...}, "task": {...}}, and no more.',
        "not readable",
    )


def _is_deep(config: Any) -> bool:
    """Say whether objects stand in objects so deep that printing them would fail."""
    level = [config]
    for _ in range(_DEPTH):
        objects = [each.values() for each in level if isinstance(each, dict)]
        lists = [each for each in level if isinstance(each, list)]
        level = [each for inner in (*objects, *lists) for each in inner]
    return bool(level)


def _no_object(config: Any) -> Finding:
    """Say that the text is JSON of another kind."""
    return Finding(
        "TF_CONFIG",
        "must be a JSON object.",
        json.dumps(config),
        'Write it as {"cluster": {...}, "task": {...}}, without quotes round it.',
        "not readable",
    )


def _repeats(names: list[str]) -> Iterator[Finding]:
    """Yield the keys that an object has twice; json would keep only the last."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    for name in repeated[:_MOST_KEYS]:
        yield Finding(
            "TF_CONFIG",
            f'has the key "{name}" more than once in one object.',
            _listed(names),
            "Put all addresses of one job into one list.",
            "hang",
        )


def _joined(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its pairs, with the lists under one name joined."""
    joined: dict[str, Any] = {}
    for name, value in pairs:
        if isinstance(value, list) and isinstance(joined.get(name), list):
            joined[name] = [*joined[name], *value]
        else:
            joined[name] = value
    return joined
