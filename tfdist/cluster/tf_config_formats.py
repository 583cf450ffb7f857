"""TF_CONFIG in the forms in which shells and containers take a variable."""

import shlex

FORMATS = ("json", "env", "shell", "dotenv")


def format_tf_config(text: str, to: str) -> str:
    """Return a line that gives TF_CONFIG a value.

    Args:
        text: The value.
        to: "json" for the value itself; "env" for an assignment in front of a command;
            "shell" for one that a shell keeps and hands on; "dotenv" for a file as
            `docker run --env-file` takes it, where quotes would be part of the value.

    Returns:
        The line.

    Raises:
        ValueError: If there is no such form.

    Example:
        >>> print(format_tf_config("{}", "shell"))
        export TF_CONFIG='{}'
    """
    if to == "json":
        return text
    if to == "env":
        return f"TF_CONFIG={shlex.quote(text)}"
    if to == "shell":
        return f"export TF_CONFIG={shlex.quote(text)}"
    if to == "dotenv":
        return f"TF_CONFIG={text}"
    raise ValueError(
        f"to must be one of {', '.join(FORMATS)}. Received: to={to!r}. "
        "Use shell for a line to source, dotenv for docker."
    )
