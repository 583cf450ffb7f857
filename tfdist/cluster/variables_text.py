"""Variables of an environment that somebody has printed: NAME=VALUE on each line."""

import re
import shlex

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
# So bash hands its functions on, over several lines; clusters have one called "module".
_BASH_FUNCTION = re.compile(r"BASH_FUNC_[^=]*=\(\) \{.*")
_ADVICE = (
    "Write NAME=VALUE, and only the variables that tell of the job: "
    "printenv | grep ^SLURM_"
)


def parse_variables(text: str, *, place: str = "variables") -> dict[str, str]:
    r"""Read variables as `printenv`, a dotenv file or `export` lines show them.

    Args:
        text: A variable on each line, maybe with "export " before it. Blank lines and
            those that begin with "#" are left out, and so are functions of bash.
        place: What the text is called in errors. Default "variables".

    Returns:
        The values. Quotation marks around the whole of a value are taken off, as by a
        shell.

    Raises:
        ValueError: If a line is no variable, or a variable stands there twice with
            different values.

    Example:
        >>> parse_variables("RANK=1\nexport TF_CONFIG='{}'")
        {'RANK': '1', 'TF_CONFIG': '{}'}
    """
    variables: dict[str, str] = {}
    is_function = False
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if is_function or _BASH_FUNCTION.fullmatch(line):
            is_function = line != "}"
            continue
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, value = _read_line(line, f"line {number} of {place}")
        if variables.setdefault(name, value) != value:
            raise ValueError(
                f"line {number} of {place} gives {name} a second value. "
                f"Received: {_excerpt(value)}, and before it "
                f"{_excerpt(variables[name])}. Leave one of them out: those of one "
                "process are wanted."
            )
    return variables


def _read_line(line: str, here: str) -> tuple[str, str]:
    """Return a variable and its value."""
    words = line.removeprefix("export ")
    name, equals, value = words.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise ValueError(
            f"{here} must be a variable and its value. "
            f"Received: {_excerpt(line)}. {_ADVICE}"
        )
    if value[:1] not in ("'", '"'):
        return name, value
    try:
        unquoted = shlex.split(value)
    except ValueError:
        unquoted = []
    if len(unquoted) != 1:
        raise ValueError(
            f"{here} must close the quotation marks around the value of {name} at its "
            f"end. Received: {_excerpt(value)}. {_ADVICE}"
        )
    return name, unquoted[0]


def _excerpt(text: str) -> str:
    """Return the beginning of a text in quotation marks."""
    return repr(text) if len(text) <= 72 else f"{text[:72]!r}..."
