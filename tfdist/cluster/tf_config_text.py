"""TF_CONFIG as text and keys: what can be wrong before it means anything."""

import json
from typing import Any

# How much of a line an error shows, and how much of that stands before the mistake.
_EXCERPT_CHARACTERS = 72
_CHARACTERS_BEFORE = 40


def parse(text: str) -> dict[str, Any]:
    """Return the JSON object that the text holds.

    Args:
        text: The value of the variable.

    Returns:
        The object, in which no key was lost to a second one of the same name.

    Raises:
        ValueError: If the text is empty or not JSON (with line and column), not an
            object, or has a key twice.

    Example:
        >>> parse('{"task": {"type": "worker", "index": 0}}')
        {'task': {'type': 'worker', 'index': 0}}
    """
    if not text.strip():
        raise ValueError(
            f"TF_CONFIG is empty. Received: {text!r}. "
            "Unset it to train alone, or let it describe the cluster."
        )
    try:
        config = json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise ValueError(_not_json(error)) from None
    if not isinstance(config, dict):
        raise ValueError(
            f"TF_CONFIG must be a JSON object. Received: {json.dumps(config)}. "
            'Write it as {"cluster": {...}, "task": {...}}, without quotes round it.'
        )
    return config


def check_keys(found: dict[str, Any], known: tuple[str, ...], complaint: str) -> None:
    """Refuse a key that nobody would read, and guess which one was meant.

    Args:
        found: An object of the text.
        known: The keys that it may have.
        complaint: How the error begins, up to the unknown key.

    Raises:
        ValueError: If the object has another key.
    """
    for key in found:
        if key not in known:
            # Imported here because only a mistake needs it.
            import difflib

            near = difflib.get_close_matches(key.lower(), known, n=1)
            advice = "Leave it out, or put it into the object where it belongs."
            if near:
                advice = f'Did you mean "{near[0]}"?'
            raise ValueError(
                f'{complaint} "{key}". Received: {", ".join(found)}. '
                f"{advice} Known are: {', '.join(known)}."
            )


def _not_json(error: json.JSONDecodeError) -> str:
    """Point at the place where the text stops being JSON."""
    # A tab counts as one column, so it may take up only one above the caret.
    line = error.doc.split("\n")[error.lineno - 1].replace("\t", " ")
    column = error.colno - 1
    start = max(0, column - _CHARACTERS_BEFORE)
    excerpt = line[start : start + _EXCERPT_CHARACTERS]
    return (
        f"TF_CONFIG is not valid JSON at line {error.lineno}, column {error.colno}: "
        f"{error.msg}. Received:\n  {excerpt}\n  {' ' * (column - start)}^\n"
        "Write it with json.dumps(): names in double quotes, no comma after the last."
    )


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its pairs; json would keep only the last of two equal keys."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f'TF_CONFIG has the key "{name}" more than once in one object. '
                f"Received: {', '.join(names)}. "
                "Put all addresses of one job into one list."
            )
    return dict(pairs)
